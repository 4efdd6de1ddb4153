"""EGRL beside other methods: tables and figures of Khadka et al., ICLR 2021."""
