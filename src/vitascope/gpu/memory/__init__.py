"""Memory: reusable page-locked and device buffers, memory statistics, and a disk cache of arrays."""
