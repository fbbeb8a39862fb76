"""Layer benchmarks: every module here is a workload under its own name."""
