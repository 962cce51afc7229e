"""The commands as processes: exit codes, output, files, signals, faults and full disks."""
