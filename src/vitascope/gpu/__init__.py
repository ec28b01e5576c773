"""The runtime under both applications: kernels, engines, pipeline; knows nothing of people, faces or files."""
