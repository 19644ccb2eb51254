"""Finding, loading, adapting and exporting models. Nothing of data, steps or processes."""
