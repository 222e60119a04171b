// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The entry point of test programs that mpirun launches. Every rank runs all test cases; a rank but the first prints
// only when it alone has something to complain about.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <mpi.h>

#include <iostream>
#include <sstream>

int main(int argc, char** argv) {
  int level = 0, rank = 0, failed_first = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::ostringstream kept;
  int failed = 0;
  {
    doctest::Context context(argc, argv);
    if (rank != 0) context.setCout(&kept);
    failed = context.run();
  }
  failed_first = failed;
  MPI_Bcast(&failed_first, 1, MPI_INT, 0, MPI_COMM_WORLD);
  if (rank != 0 && failed != 0 && failed_first == 0) std::cout << "rank " << rank << ":\n" << kept.str() << std::flush;
  MPI_Finalize();
  return failed;
}
