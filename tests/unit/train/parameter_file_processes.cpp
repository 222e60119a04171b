// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks that are processes write and read a model together, and are killed while they do.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/backend/host/processes.hpp"
#include "unit/train/support/parameter_files.hpp"

using namespace parameter_files_bench;

TEST_CASE("ranks that are processes export the same") {
  const auto one = exported(belay::host::world{1}, {{}, belay::zero_stage::none, 150});
  for (const axes& shape : {axes{.data = 4, .shard_group = 2}, axes{.pipeline = 2, .data = 2}})
    CHECK(exported(belay::host::processes{4}, {shape, belay::zero_stage::parameters, 150}) == one);
}

TEST_CASE("a process with a limit on its files tells those that have none") {
  const directory dir;
  for (const int culprit : {0, 1, 2}) {
    CAPTURE(culprit);
    belay::host::processes{3}.run([&](auto& rank) { return write_model<belay::posix_files>(rank, dir.path, 1), 0; });
    const auto before = contents(dir.path);
    const auto ends = belay::host::processes{3}.run([&](auto& rank) {
      if (rank.number() == culprit) {
        ::signal(SIGXFSZ, SIG_IGN);
        const rlimit most{1000, 1000};
        ::setrlimit(RLIMIT_FSIZE, &most);
      }
      return heard([&] { write_model<belay::posix_files>(rank, dir.path, 2); });
    });
    check_alike(ends, "file " + std::to_string(culprit) + " model.safetensors.tmp-", "bytes: File too large");
    CHECK(contents(dir.path) == before);
  }
}

TEST_CASE("a rank that is killed while it writes is named by the others, which leave nothing") {
  const directory dir;
  for (const std::uint64_t largest : {st::largest_file, std::uint64_t{1}})
    for (const int culprit : {0, 2}) {
      CAPTURE(culprit);
      belay::host::processes{3}.run(
          [&](auto& rank) { return write_model<belay::posix_files>(rank, dir.path, 1, largest), 0; });
      const auto before = contents(dir.path);
      const auto ends = belay::host::processes{3}.outcomes([&](auto& rank) {
        return heard([&] {
          st::writer out(st::written_by(rank.world()), dir.path, st::file_division(tensors, largest));
          const std::vector<float> values(size / 3, 2.0F);
          for (const st::declaration& each : tensors) {
            out.write(each.name, size / 3 * static_cast<std::size_t>(rank.number()), std::span<const float>(values));
            if (rank.number() == culprit) ::raise(SIGKILL);
          }
          out.commit();
        });
      });
      for (int rank : {0, 1, 2}) {
        if (rank == culprit) continue;
        CHECK(ends[static_cast<std::size_t>(rank)].result == "comm peer_failed " + std::to_string(culprit));
      }
      CHECK(contents(dir.path) == before);
    }
}

TEST_CASE("a file that is cut while it fills is named by all processes") {
  CHECK_NOTHROW(cut_while_it_fills(belay::host::processes{2}));
}

TEST_CASE("a rank that is killed while it reads is named by the others") {
  const directory dir;
  export_to(dir.path);
  for (const int culprit : {0, 2}) {
    CAPTURE(culprit);
    try {
      on_ranks(belay::host::processes{3}, {.pipeline = 3}, [&](auto& rank, auto& mesh, staged_network& net) {
        int listed = 0;
        if (rank.number() == 2)
          net.between = [&] {
            if (++listed == 2 && culprit == 2) ::raise(SIGKILL);
          };
        if (rank.number() == 0 && culprit == 0) ::raise(SIGKILL);
        try {
          belay::import_parameters(mesh, net, dir.path);
        } catch (const belay::comm_error& problem) {
          expect(problem.fault() == belay::comm_fault::peer_failed, problem.what());
          expect(problem.about().culprits == std::vector<int>{culprit}, problem.what());
          throw;
        }
        expect(false, "a rank was killed");
      });
      FAIL("a rank was killed");
    } catch (const belay::comm_error& problem) {
      CHECK(problem.about().culprits == std::vector<int>{culprit});
      CHECK(problem.about().signal == SIGKILL);
    }
  }
}
