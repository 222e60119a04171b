// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks that read a model together: each opens and reads what it keeps, and what one of them cannot read all of them
// say.
#include <doctest/doctest.h>
#include <fcntl.h>

#include <cstddef>
#include <filesystem>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "belay/backend/host.hpp"
#include "unit/train/support/parameter_files.hpp"

using namespace parameter_files_bench;

namespace {

// The machine's files, with what this thread opened and how much it read.
struct counting_files : belay::posix_files {
  static inline thread_local std::set<std::string> opened;
  static inline thread_local std::size_t bytes = 0;

  [[nodiscard]] static int open(const char* path, int flags, mode_t mode) {
    opened.insert(std::filesystem::path(path).filename().string());
    return posix_files::open(path, flags, mode);
  }
  [[nodiscard]] static ssize_t read_at(int fd, void* to, std::size_t count, off_t offset) noexcept {
    const ssize_t got = posix_files::read_at(fd, to, count, offset);
    if (got > 0) bytes += static_cast<std::size_t>(got);
    return got;
  }
};

}  // namespace

TEST_CASE("a rank opens the files of what it keeps, and reads the bytes of what it keeps") {
  const directory dir;
  export_to(dir.path);
  for (const belay::axes& shape :
       {belay::axes{.pipeline = 3, .data = 2}, belay::axes{.data = 4, .shard_group = 2}, belay::axes{.pipeline = 3}}) {
    on_ranks(belay::host::world{static_cast<int>(shape.ranks())}, shape, [&](auto&, auto& mesh, staged_network& net) {
      counting_files::opened.clear();
      const st::basic_folder<counting_files> in(dir.path, belay::needed_tensors(net));
      std::set<std::string> expected{"model.safetensors.index.json"};
      if (net.stages == 1) expected.insert(std::begin(file_of), std::end(file_of));
      if (net.stages == 3) expected.insert(file_of[net.stage]);
      CHECK(counting_files::opened == expected);
      counting_files::bytes = 0;
      belay::fill_parameters(net, in);
      const std::size_t kept = rows * columns * 4 * (net.stages == 1 ? 3 : 1);
      const auto shards = static_cast<std::size_t>(mesh.shape().shards());
      CHECK(counting_files::bytes >= kept / shards - 20'000);
      CHECK(counting_files::bytes <= kept / shards + (shards == 1 ? 0 : 20'000));
    });
  }
}

TEST_CASE("what nobody needs may be missing, and what somebody needs is asked for by all") {
  const directory dir;
  export_to(dir.path);
  std::filesystem::remove(dir / file_of[1]);
  on_ranks(belay::host::world{3}, {.pipeline = 3}, [&](auto&, auto& mesh, staged_network& net) {
    const belay::file_error said = refusal(mesh, net, dir.path);
    CHECK(said.rank() == 1);
    CHECK(said.path() == dir / file_of[1]);
    CHECK(said.message().find("cannot be opened: No such file") == 0);
  });
  belay::launch(belay::host::world{3}, [&](auto& rank, auto& run) {  // the last of three stages alone
    belay::mesh mesh{rank, {.data = 3}};
    staged_network net(mesh);
    net.stages = 3;
    net.stage = 2;
    belay::parameter_store store{run, mesh, net, belay::zero<3>{}};
    belay::import_parameters(mesh, net, dir.path);
    if (!run.rehearsing() && rank.number() == 0) CHECK(belay::needed_tensors(net) == std::vector<std::string>{"third"});
  });
}

TEST_CASE("a tensor of another shape, or none, is named with its file by all ranks") {
  const directory dir;
  {
    st::writer out(dir.path, st::file_division({{"first", st::stored_type::f32, {columns, rows}}}, 1));
    const std::vector<float> values(rows * columns);
    out.write("first", 0, std::span(values));
    out.commit();
  }
  on_ranks(belay::host::world{2}, {.data = 2}, [&](auto&, auto& mesh, staged_network& net) {
    CHECK(refusal(mesh, net, dir.path).message() == "has no tensor second");
    net.stages = 3;
    const belay::file_error said = refusal(mesh, net, dir.path);
    CHECK(said.path() == dir / "model.safetensors");
    CHECK(said.message() == "tensor first is 50x300, 300x50 is needed");
  });
}

TEST_CASE("a file that is cut while it fills is named by all ranks with its byte, and all is given back") {
  CHECK_NOTHROW(cut_while_it_fills(belay::host::world{2}));
}
