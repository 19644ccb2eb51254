"""Finding, loading, adapting and exporting models. Nothing of data, steps or processes."""

import logging

# peft imports bitsandbytes wherever it is installed, which on some CPUs advises a package for 4-bit weights, whether
# there are any or not.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
