"""Any model → units: export, cut, kinds, layout, replay. No file per family."""
