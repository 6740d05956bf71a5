"""The HTML report: one self-contained file for any set of runs, without scripts.

evidence   the values of one run              axes, drawing, charts   the chart kit, as SVG
groups     which runs belong together         plots, maps             the charts of a report
measures   bins, shares, intervals            page, explanation       what a page contains
                                              rendering, templates/   how it becomes HTML

This package only renders values. `unimp.runs.reporting` reads run folders and writes pages.
"""
