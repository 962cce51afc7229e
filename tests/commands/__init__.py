"""The commands as processes: exit codes, both streams, files; kills, faults and full disks."""
