"""Our solvers on instances of other projects, judged by their validators."""
