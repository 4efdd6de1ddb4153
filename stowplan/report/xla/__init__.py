"""The page and the picture about a tuning of XLA: both layouts side by side, and what gained."""

from stowplan.report.xla.report import render_tuning_report, save_tuning_picture, save_tuning_report

__all__ = ["render_tuning_report", "save_tuning_picture", "save_tuning_report"]
