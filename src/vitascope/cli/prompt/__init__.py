"""``vitascope interactive``: lines of input are commands, and jobs run meanwhile."""
