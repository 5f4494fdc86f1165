"""`python -m dflash.train`: data, train, export, eval."""
from .main import main

raise SystemExit(main())
