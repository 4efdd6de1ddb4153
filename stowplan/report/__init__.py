"""Pictures, the HTML report and readable dumps of plans.

Each file knows only those before it:

- ``colours``: the palette, and what can be read on a colour
- ``modulo_scheduling_layout``: what a picture of a modulo schedule shows, as numbers
- ``page``: parts of the HTML report
- ``text``: sizes, times, axis ticks and names as people read them
- ``boxes``: boxes over time and offsets
- ``scene``: scenes
- ``curves``: the curve of a search
- ``memory_mapping_drawing``: memory-mapping plans drawn, after the paper's figures 1 and 8
- ``paper``: pictures on paper
- ``figures``: pictures as files
- ``inline``: plots of the HTML report
- ``presenter``: how plans of a kind are shown
- ``bank_mapping``: how bank mappings are shown
- ``html``: the report
- ``memory_mapping``: how memory-mapping plans are shown
- ``modulo_scheduling``: how modulo schedules are shown
- ``notebook``: what notebooks show of results, plans and problems
- ``rematerialization``: how plans of rematerialization are shown
- ``snapshot``: what a plan says of a memory snapshot, in lines and as a part of the report
- ``packing``: how packings are shown
- ``llm_placement``: how placements of language models are shown
- ``banked_packing``: how banked packings are shown
- ``operator_order``: how operator orders are shown
- ``tier_placement``: how tier placements are shown
- ``validation``: the page about a validation of policies
- ``xla_comparison``: XLA's default beside the best of a tuning
- ``xla``: the page about a tuning of XLA
"""
