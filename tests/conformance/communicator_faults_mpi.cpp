// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <chrono>
#include <thread>

#include "conformance/communicator_faults.hpp"
#include "conformance/in_flight.hpp"
#include "conformance/mpi_ranks.hpp"
#include "unit/backend/hand_clock.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_throw, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_throw_silently, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_return, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_timeout, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch_rest, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch_counts, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_overlap, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch_pair, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_started_fault, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_in_flight, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_in_flight_silent, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_in_flight_timeout, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_in_flight_mismatch, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_one_order, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_other_order, conformance::mpi_ranks);

TEST_CASE("a rank that does not come is named when the others' clocks say so, each process its own") {
  using namespace std::chrono_literals;
  const auto begun = std::chrono::steady_clock::now();
  hand_clock clock;
  belay::mpi::world({.timeout = 600s, .clock = &clock}).run([&](belay::mpi::rank& rank) {
    rank.world().barrier();
    if (rank.number() == rank.size() - 1) {
      while (!rank.watch()->failed()) std::this_thread::sleep_for(1ms);
      return;
    }
    const moving_on fast(clock);
    const auto what = conformance::failure_of([&] { rank.world().barrier(); });
    CHECK(what.fault == belay::comm_fault::timeout);
    CHECK(conformance::names(what, rank.size() - 1));
    CHECK(what.message.find("within 600") != std::string::npos);
  });
  CHECK(std::chrono::steady_clock::now() - begun < 60s);
}
