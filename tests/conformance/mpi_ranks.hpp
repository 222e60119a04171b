// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The MPI backend as the conformance suites see a backend. The program is launched once, with four ranks; a world of
// fewer is made of the first ones, and the others wait for its results. Worlds of more are not run.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "belay/backend/mpi.hpp"
#include "conformance/ends.hpp"

namespace conformance {

struct mpi_ranks {
  using rank_type = belay::mpi::rank;

  template <class Body>
  static std::vector<bool> run(int ranks, Body body) {
    return run(ranks, std::chrono::seconds(60), body);
  }
  // If a rank's body threw, every rank throws, so that all go on with the same test.
  template <class Body>
  static std::vector<bool> run(int ranks, std::chrono::duration<double> timeout, Body body) {
    const std::vector<outcome> all = outcomes(ranks, timeout, body);
    std::vector<bool> out;
    for (int q = 0; q < static_cast<int>(all.size()) && q < ranks; ++q) {
      const outcome& one = all[static_cast<std::size_t>(q)];
      if (one.threw) throw std::runtime_error("rank " + std::to_string(q) + " threw: " + one.what);
      out.push_back(one.ok);
    }
    return out;
  }

  template <class Body>
  static ends run_failing(int ranks, Body body) {
    ends out;
    const std::vector<outcome> all = outcomes(ranks, std::chrono::seconds(60), body);
    for (std::size_t q = 0; q < all.size() && q < static_cast<std::size_t>(ranks); ++q) {
      out.returned.push_back(all[q].ok);
      if (all[q].threw && out.error.empty()) out.error = all[q].what;
    }
    return out;
  }

 private:
  struct outcome {
    bool ok = false;
    bool threw = false;
    char what[400] = "";
  };

  // How the body ended on each rank; empty where there are not so many ranks.
  template <class Body>
  static std::vector<outcome> outcomes(int ranks, std::chrono::duration<double> timeout, Body body) {
    int size = 0, me = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    if (ranks > size) return {};
    MPI_Comm some = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, me < ranks ? 0 : MPI_UNDEFINED, me, &some);
    outcome mine;
    if (some != MPI_COMM_NULL) {
      try {
        mine.ok = belay::mpi::world{{.timeout = timeout, .communicator = some}}.run(body);
      } catch (const std::exception& problem) {
        mine.threw = true;
        std::strncpy(mine.what, belay::message_of(problem), sizeof mine.what - 1);
      } catch (...) {
        mine.threw = true;
        std::strncpy(mine.what, "no std::exception", sizeof mine.what - 1);
      }
    }
    std::vector<outcome> all(static_cast<std::size_t>(size));
    MPI_Request request;
    MPI_Iallgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, MPI_COMM_WORLD, &request);
    for (int done = 0; done == 0;) {
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (done == 0) belay::mpi::nap(std::chrono::microseconds(100));
    }
    if (some != MPI_COMM_NULL) MPI_Comm_free(&some);
    return all;
  }
};

}  // namespace conformance
