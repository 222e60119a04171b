// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks under mpirun write and read a model together.
#include <doctest/doctest.h>
#include <mpi.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string>

#include "belay/backend/host.hpp"
#include "belay/backend/mpi.hpp"
#include "unit/train/support/parameter_files.hpp"

using namespace parameter_files_bench;

namespace {

// A folder of rank 0, which is there until all have left.
class shared_directory {
 public:
  shared_directory() {
    std::array<char, 200> name{};
    mine_.path.copy(name.data(), name.size() - 1);
    MPI_Bcast(name.data(), static_cast<int>(name.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
    path = name.data();
  }
  shared_directory(const shared_directory&) = delete;
  shared_directory& operator=(const shared_directory&) = delete;
  ~shared_directory() { MPI_Barrier(MPI_COMM_WORLD); }

  std::string path;

 private:
  directory mine_;
};

// The machine's files, which take nothing from one rank.
struct full_files : belay::posix_files {
  static inline bool is_full = false;
  [[nodiscard]] static ssize_t write_at(int fd, const void* from, std::size_t bytes, off_t offset) noexcept {
    errno = ENOSPC;
    return is_full ? -1 : posix_files::write_at(fd, from, bytes, offset);
  }
};

}  // namespace

TEST_CASE("what ranks of MPI export is what one rank exports, and they read it") {
  for (const std::uint64_t largest : {one_file, std::uint64_t{150}}) {
    const auto one = exported(belay::host::world{1}, {{}, belay::zero_stage::none, largest});
    for (const axes& shape : {axes{.data = 4}, axes{.data = 4, .shard_group = 2}, axes{.data = 2, .expert = 2},
                              axes{.pipeline = 2, .data = 2}})
      for (const belay::zero_stage stage : {belay::zero_stage::optimizer_state, belay::zero_stage::parameters}) {
        INFO(shape.text() << ", stage " << static_cast<int>(stage));
        const shared_directory first, second;
        belay::launch(belay::mpi::world{}, body(first.path, {shape, stage, largest}, 3));
        CHECK(contents(first.path) == one);
        belay::launch(belay::mpi::world{}, body(second.path, {shape, stage, largest}, 9, first.path));
        CHECK(contents(second.path) == one);
      }
  }
}

TEST_CASE("what a rank of MPI cannot write all of them say, and nothing is left") {
  const shared_directory dir;
  for (const int culprit : {0, 3}) {
    std::string said;
    const bool ended = belay::mpi::world{}.run([&](auto& rank) {
      full_files::is_full = rank.number() == culprit;
      said = heard([&] { write_model<full_files>(rank, dir.path, 1); });
      rank.world().barrier();
      return true;
    });
    CHECK(ended);
    CAPTURE(said);
    CHECK(said.find("file " + std::to_string(culprit) + " model.safetensors.tmp-") == 0);
    CHECK(contains(said, culprit == 0 ? "cannot write 176 bytes: No space left on device"
                                      : "cannot write 3000 bytes: No space left on device"));
    CHECK(contents(dir.path).empty());
  }
}
