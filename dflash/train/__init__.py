"""Training of drafters for dgraft: data, train, export and eval. Start with `python -m dflash.train --help`."""
