// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/communicator_faults.hpp"
#include "conformance/mpi_ranks.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_return, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_timeout, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch_rest, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch_counts, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_overlap, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch_pair, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_started_fault, conformance::mpi_ranks);

// As conf_throw, where ranks share no memory.
TEST_CASE("a rank that throws is named by all others, whatever they wait in, and throws its own words") {
  using namespace conformance;
  for (int ranks : {2, 3, 4}) {
    for (int which = 0; which < operation_count; ++which) {
      CAPTURE(ranks);
      CAPTURE(which);
      const int culprit = ranks / 2;
      const auto ends = mpi_ranks::outcomes(ranks, std::chrono::seconds(60), [&](auto& rank) {
        const auto& world = rank.world();
        buffers with(ranks, 5);
        world.barrier();
        if (rank.number() == culprit) throw std::domain_error("the culprit's own words");
        const auto what = failure_of([&] {
          for (int k = 0; k < 3; ++k) call(world, which, 5, with);  // an exchange of others may still succeed
          world.barrier();
        });
        const auto again = failure_of([&] { world.barrier(); });
        return what.fault == belay::comm_fault::peer_failed && names(what, culprit) && !what.there.empty() &&
               what.message.find("the culprit's own words") != std::string::npos && again.message == what.message &&
               again.culprits == what.culprits;
      });
      for (int q = 0; q < ranks && q < static_cast<int>(ends.size()); ++q) {
        const auto& end = ends[static_cast<std::size_t>(q)];
        CHECK(end.threw == (q == culprit));
        CHECK((q == culprit ? std::string(end.what) == "the culprit's own words" : end.ok));
      }
    }
  }
}
