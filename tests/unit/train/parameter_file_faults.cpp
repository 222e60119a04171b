// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks that write a model together, of which one cannot: all say the same, nothing is left, and the file that was
// there stays.
#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "belay/backend/host.hpp"
#include "unit/train/support/parameter_files.hpp"

using namespace parameter_files_bench;

namespace {

// The machine's files, of which a call of one rank fails. Ranks are threads.
struct faulty_files : belay::posix_files {
  static inline thread_local int rank = -1;
  static inline std::atomic<int> of_rank = -1;
  static inline std::atomic<int> error = 0;
  enum call { none, opening, writing, half_a_write, syncing, renaming };
  static inline std::atomic<call> fails = none;

  [[nodiscard]] static bool is_it(call which) noexcept {
    if (fails != which || rank != of_rank) return false;
    errno = error;
    return true;
  }
  [[nodiscard]] static int open(const char* path, int flags, mode_t mode) noexcept {
    return is_it(opening) ? -1 : posix_files::open(path, flags, mode);
  }
  [[nodiscard]] static ssize_t write_at(int fd, const void* from, std::size_t bytes, off_t offset) noexcept {
    if (is_it(writing)) return -1;
    if (is_it(half_a_write) && bytes == 4000) return posix_files::write_at(fd, from, 1000, offset);
    if (is_it(half_a_write)) return -1;
    return posix_files::write_at(fd, from, bytes, offset);
  }
  [[nodiscard]] static int sync(int fd) noexcept { return is_it(syncing) ? -1 : posix_files::sync(fd); }
  [[nodiscard]] static int rename(const char* from, const char* to) noexcept {
    return is_it(renaming) ? -1 : posix_files::rename(from, to);
  }
};

}  // namespace

TEST_CASE("whatever a rank cannot do with its file, all ranks say it with rank, file and bytes, and nothing is left") {
  const directory dir;
  struct fault {
    faulty_files::call call;
    int rank, error;
    std::string begins, ends;
  };
  const fault faults[] = {
      {faulty_files::opening, 0, EACCES, "file 0 model.safetensors.tmp-", "cannot be created: Permission denied"},
      {faulty_files::opening, 2, ESTALE, "file 2 model.safetensors.tmp-", "cannot be opened: Stale file handle"},
      {faulty_files::writing, 0, EIO, "file 0 model.safetensors.tmp-", "cannot write 176 bytes: Input/output error"},
      {faulty_files::writing, 1, ENOSPC, "file 1 model.safetensors.tmp-",
       "cannot write 4000 bytes: No space left on device"},
      {faulty_files::half_a_write, 2, EDQUOT, "file 2 model.safetensors.tmp-",
       "cannot write 3000 bytes: Disk quota exceeded"},
      {faulty_files::syncing, 2, EIO, "file 2 model.safetensors.tmp-", "cannot be brought to the medium"},
      {faulty_files::renaming, 0, EXDEV, "file 0 model.safetensors ", "cannot be replaced: Invalid cross-device link"},
  };
  for (const bool is_new : {true, false}) {
    if (!is_new)
      belay::host::world{3}.run([&](auto& rank) { return write_model<belay::posix_files>(rank, dir.path, 1), 0; });
    const auto before = contents(dir.path);
    REQUIRE(before.size() == (is_new ? 0 : 1));
    for (const fault& each : faults) {
      CAPTURE(each.begins);
      CAPTURE(each.ends);
      faulty_files::of_rank = each.rank;
      faulty_files::error = each.error;
      faulty_files::fails = each.call;
      const auto ends = belay::host::world{3}.run([&](auto& rank) {
        faulty_files::rank = rank.number();
        const std::string said = heard([&] { write_model<faulty_files>(rank, dir.path, 2); });
        rank.world().barrier();  // the group works on
        return said;
      });
      faulty_files::fails = faulty_files::none;
      check_alike(ends, each.begins, each.ends);
      CHECK(contents(dir.path) == before);
    }
  }
}

TEST_CASE("a folder that is not there, or that nobody may write to, is said by all") {
  const directory dir;
  std::filesystem::create_directory(dir / "closed");
  std::filesystem::permissions(dir / "closed", std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  std::vector<std::string> folders{dir / "none"};
  if (::geteuid() != 0) folders.push_back(dir / "closed");
  for (const std::string& folder : folders)
    for (const std::uint64_t largest : {st::largest_file, std::uint64_t{1}})
      check_alike(belay::host::world{3}.run([&](auto& rank) {
        return heard([&] { write_model<belay::posix_files>(rank, folder, 2, largest); });
      }),
                  "file 0 model", "cannot be created: ");
  std::filesystem::permissions(dir / "closed", std::filesystem::perms::owner_all);
  CHECK(contents(dir / "closed").empty());
}

TEST_CASE("what is written twice or not at all, and other declarations, are refused by all ranks") {
  const directory dir;
  const auto said = [&](auto&& body) {
    const auto ends = belay::host::world{3}.run([&](auto& rank) { return heard([&] { body(rank); }); });
    check_alike(ends, "usage ", "");
    CHECK(contents(dir.path).empty());
    return ends[0];
  };
  const std::vector<float> values(size);
  const auto only = [&](auto& rank, auto&& writes) {
    st::writer out(st::written_by(rank.world()), dir.path, st::file_division(tensors, st::largest_file));
    if (writes(rank.number())) out.write("first", 0, std::span(values));
    if (rank.number() == 1) out.write("second", 0, std::span(values));
    out.commit();
  };
  CHECK(contains(said([&](auto& rank) { only(rank, [](int number) { return number != 1; }); }),
                 "tensor first has 12000 bytes, 24000 were written"));
  CHECK(contains(said([&](auto& rank) { only(rank, [](int) { return false; }); }),
                 "tensor first has 12000 bytes, 0 were written"));
  CHECK(contains(said([&](auto& rank) {
                   auto mine = tensors;
                   if (rank.number() == 2) mine[1].shape[0] = 4;
                   st::writer out(st::written_by(rank.world()), dir.path, st::file_division(mine, st::largest_file));
                 }),
                 "ranks that write a model together declare other tensors: ranks 0, 1 and rank 2"));
  belay::host::world{1}.run([&](auto& rank) {
    st::writer out(st::written_by(rank.world()), dir.path, st::file_division(tensors, st::largest_file));
    CHECK_THROWS_WITH_AS(out.write("third", 0, std::span(values)), doctest::Contains("third was not declared"),
                         belay::usage_error);
    CHECK_THROWS_WITH_AS(out.write("first", 1, std::span(values)), doctest::Contains("elements 1 to 3001 of tensor"),
                         belay::usage_error);
    const std::vector<double> wide(2);
    CHECK_THROWS_WITH_AS(out.write("first", 0, std::span(wide)), doctest::Contains("declared as F32"),
                         belay::usage_error);
    for (const st::declaration& each : tensors) out.write(each.name, 0, std::span(values));
    out.commit();
    CHECK_THROWS_WITH_AS(out.commit(), doctest::Contains("has been committed"), belay::usage_error);
    return 0;
  });
  CHECK(contents(dir.path).size() == 1);
}

TEST_CASE("ranks that find their model on the medium may give it up, and a rehearsal writes nothing") {
  const directory dir;
  belay::launch(belay::host::world{3}, [&](auto& rank, auto& run) {
    const belay::group world = rank.world();
    const std::string folder = run.rehearsing() ? dir / "none" : dir.path;
    st::writer out(st::written_by(world), folder, st::file_division(tensors, 1));
    CHECK(out.files() == (run.rehearsing() ? 0 : 2));
    const std::vector<float> values(size / 3, 2.0F);
    const std::size_t first = run.rehearsing() ? 0 : size / 3 * static_cast<std::size_t>(rank.number());
    for (const st::declaration& each : tensors) out.write(each.name, first, std::span(values));
    out.finish();
    out.finish();
    if (run.rehearsing()) return out.commit();
    CHECK_THROWS_WITH_AS(out.write("first", 0, std::span(values)), doctest::Contains("first is written after finish"),
                         belay::usage_error);
    CHECK(!std::filesystem::exists(dir / "model-00001-of-00002.safetensors"));
  });
  CHECK(contents(dir.path).empty());
}
