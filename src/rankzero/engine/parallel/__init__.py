"""How a model lies over the processes of a run: a replica on each, FSDP2, or DeepSpeed's ZeRO."""
