"""Presents plans and results: pictures, the HTML report, HTML for notebooks, and plans as text.

A *presenter* shows the plans of one kind. A *labelled* plan is a pair (name, plan); if several are shown, the first is the main
one, usually the plan of a result, and the others are plans to compare with, such as baselines. A *picture* consists of plots, a
plot of panels below each other, and a panel of *marks*, which are single graphical elements. The *tip* of a mark is a text that
appears when the pointer is on it, and a text named *spoken* describes a picture for readers who cannot see it. A *box* is the
rectangle of one tensor or buffer, its *owner*, in a picture with time across and offsets in memory up. A *layout* is a plan
with the positions of everything that is drawn.

Each file imports only those before it:

- ``colours``: the palette, and text colours for a background
- ``modulo_scheduling_layout``: the layout of a picture of a modulo schedule
- ``page``: parts of the HTML report
- ``text``: text for sizes, times, axis ticks and names
- ``boxes``: layouts of memory as boxes over time and offsets
- ``scene``: descriptions of pictures that do not depend on the renderer
- ``trace``: plans as files for viewers of timelines, such as Perfetto
- ``curves``: the best objective and the bound over time
- ``memory_mapping_drawing``: pictures of memory-mapping plans, after figures 1 and 8 of Wang et al. 2023
- ``paper``: pictures laid out in points, for files
- ``figures``: pictures as SVG, PNG and PDF files
- ``inline``: plots in the HTML report
- ``presenter``: the base classes of presenters, which show the plans of a kind
- ``bank_mapping``: presenter of bank mappings
- ``html``: the HTML report about a result
- ``memory_mapping``: presenter of memory-mapping plans
- ``modulo_scheduling``: presenter of modulo schedules
- ``notebook``: HTML of results, plans and problems for notebooks
- ``rematerialization``: presenter of rematerialization plans
- ``snapshot``: the findings about a memory snapshot of PyTorch
- ``packing``: presenter of packings
- ``llm_placement``: presenter of placements of language models
- ``banked_packing``: presenter of banked packings
- ``operator_order``: presenter of operator orders
- ``tier_placement``: presenter of tier placements
- ``validation``: the HTML page about a validation of policies
- ``xla_comparison``: XLA's default compared with the best result of a tuning
- ``xla``: the HTML page about a tuning of XLA
"""
