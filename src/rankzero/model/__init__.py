"""Finding, loading, adapting and exporting models. Nothing of data, steps or processes."""

from rankzero.model import bitsandbytes_import

bitsandbytes_import.arrange()
