// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/call_guard.hpp"
#include "conformance/mpi_ranks.hpp"

namespace guarded {

// A flag that the first rank sends its peers without the world.
class word {
 public:
  explicit word(int ranks) : ranks_(ranks) {}
  void tell() const {
    for (int peer = 1; peer < ranks_; ++peer) MPI_Send(nullptr, 0, MPI_BYTE, peer, tag, MPI_COMM_WORLD);
  }
  void wait() const { MPI_Recv(nullptr, 0, MPI_BYTE, 0, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE); }

 private:
  static constexpr int tag = 4711;
  int ranks_;
};

struct mpi_ranks : conformance::mpi_ranks {
  using word = guarded::word;
  static constexpr bool child_may_exit = false;  // the MPI library would end with it
};

}  // namespace guarded

TEST_CASE_TEMPLATE_INVOKE(conf_two_threads, guarded::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_beside_a_call, guarded::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_child, guarded::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_child_ends, guarded::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_after, guarded::mpi_ranks);
