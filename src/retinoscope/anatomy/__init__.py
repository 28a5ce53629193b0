"""Any model → units: an anatomy, and ways to run and to reach its parts.

In the order in which a model goes through this room:

1. ``graph``: an example (``example.py``) and a model in eval mode (``rest``) give its functional
   graph (``export``, ``functional``, ``answer``) and the flow of data in it (``flow``).
2. ``reading``: what each operation does (``facts``, ``rules``) and what the dimensions of each
   tensor mean (``axes.py``, ``reader``, ``meaning``), so that states can be seen as maps
   (``layout.py``).
3. ``units``: cut vertices (``steps``), what lies between them (``cut``), its kind (``kinds``), its
   name (``names``), its cost (``cost``), its parameters (``learned``).
4. ``dissect.py`` puts these together to an anatomy; ``record.py`` keeps the last ones.
5. On what was dissected work ``replay.py`` (states, lesions, suffix runs; written by
   ``writer.py``), ``attentions.py``, ``channels.py``, ``masked.py``, and ``sites.py``, which says
   where in the tree of modules all this can be reached.

Nothing here knows a family of models.
"""
