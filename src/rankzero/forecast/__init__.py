"""What a run will take: steps, passes, memory, disk, time. Numbers and words; nothing here trains or imports torch."""
