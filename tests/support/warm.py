"""What each rank would import and build for itself, once, in the process that ranks are forked from.

Nothing that starts a thread, which a fork would not have, and nothing that draws a random number.
"""

from __future__ import annotations

import importlib
import pkgutil

from rankzero.collector import look_as_usual, look_seldom

look_seldom()

IMPORTED = (
    "rankzero.engine.worker",
    "rankzero.engine.gradient_sum",
    "rankzero.report.page",
    "rankzero.data.batches.collators",
    "rankzero.engine.parallel",
    "rankzero.engine.tasks",
    "peft.tuners.lora.bnb",
    "pyarrow.compute",
    "rich.console",
    "numpy.ctypeslib",
    "transformers.models.llama.modeling_llama",
)
"""Modules, and of packages of ours all modules."""

for name in IMPORTED:
    module = importlib.import_module(name)
    if name.startswith("rankzero.") and hasattr(module, "__path__"):
        for found in pkgutil.iter_modules(module.__path__, f"{name}."):
            importlib.import_module(found.name)

from transformers.conversion_mapping import get_checkpoint_conversion_mapping  # noqa: E402 - once the rest is there

from rankzero.html.page import environment  # noqa: E402

get_checkpoint_conversion_mapping("llama")  # a table of hundreds of expressions, for all models
pages = environment("rankzero.report")
for template in pages.list_templates(extensions=["jinja"]):
    pages.get_template(template)

look_as_usual()
