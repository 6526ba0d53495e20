"""One process, no MPI."""


def global_mpi_rank() -> int:
    return 0


def global_mpi_size() -> int:
    return 1
