"""`python -m rankzero.engine.prepare RUN.json`: everything of a run that can be made ready without a GPU.

The model's files are found or fetched, the tokenizer and the names are checked, and the data is tokenised into the
cache, where every process of the run finds it.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

from rankzero.engine.console import RunConsole, logger
from rankzero.engine.distributed import World
from rankzero.engine.goodput import Ledger
from rankzero.engine.inputs import read_inputs
from rankzero.engine.process import die_with_parent, hand_over
from rankzero.engine.resume import refuse_before_gpus
from rankzero.model.fingerprint_beside import FingerprintBeside
from rankzero.model.load import settle_libraries
from rankzero.run_dir.handover import read_payload
from rankzero.run_dir.paths import RunDir


def main() -> None:
    """Read the payload of a worker, prepare, and hand an error over as a worker does."""
    die_with_parent()
    spec, options = read_payload(Path(sys.argv[1]).read_text(encoding="utf-8"))
    settle_libraries()
    console = RunConsole(speaks=True, level=options.log_level)
    try:
        with closing(FingerprintBeside(spec.own_code)) as base:
            inputs = read_inputs(spec, World(), Ledger(), heard=base.begin)
            base.wait()  # so that processes with GPUs need not
        refuse_before_gpus(RunDir(Path(spec.output_dir) / str(spec.name)), spec, inputs, options)
        rows = "rows to train on are streamed" if inputs.n_rows is None else f"{inputs.n_rows} rows to train on"
        logger.info("[DONE] prepared: %s, %s", inputs.source.name, rows)
    except Exception as error:
        sys.exit(hand_over(error))
    finally:
        console.close()


if __name__ == "__main__":
    main()
