// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A folder of checkpoints on a disk that refuses one call: a question without an answer is none. The newest checkpoint
// is never removed for it, nor begun before.
#include "belay/train/checkpoint/checkpoint_folder.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "belay/train/safetensors/folder.hpp"
#include "unit/train/support/directory.hpp"

using train_bench::directory;

namespace {

// The machine's files, of which one call fails.
struct refusing_files : belay::posix_files {
  static inline std::size_t calls = 0, fails_at = 0;
  static inline int error = 0;

  // Call number `call` from now on; 0: none.
  static void refuse(std::size_t call, int with) { calls = 0, fails_at = call, error = with; }

  [[nodiscard]] static int open(const char* path, int flags, mode_t mode) {
    return call(posix_files::open, path, flags, mode);
  }
  [[nodiscard]] static ssize_t read_at(int file, void* to, std::size_t bytes, off_t offset) {
    return call(posix_files::read_at, file, to, bytes, offset);
  }
  [[nodiscard]] static int sync(int file) { return call(posix_files::sync, file); }
  [[nodiscard]] static int ask(const char* path, struct stat& facts) { return call(posix_files::ask, path, facts); }
  [[nodiscard]] static int ask_link(const char* path, struct stat& facts) {
    return call(posix_files::ask_link, path, facts);
  }
  [[nodiscard]] static int ask_open(int file, struct stat& facts) { return call(posix_files::ask_open, file, facts); }
  [[nodiscard]] static ssize_t list(int folder, void* to, std::size_t bytes) {
    return call(posix_files::list, folder, to, bytes);
  }
  [[nodiscard]] static int lock(int folder) { return call(posix_files::lock, folder); }
  [[nodiscard]] static int make_folder(const char* path, mode_t mode) {
    return call(posix_files::make_folder, path, mode);
  }
  [[nodiscard]] static int remove_in(int folder, const char* name) {
    return call(posix_files::remove_in, folder, name);
  }
  [[nodiscard]] static int remove_folder(const char* path) { return call(posix_files::remove_folder, path); }

 private:
  template <class Function, class... Types>
  static auto call(Function of, Types&&... arguments) -> decltype(of(arguments...)) {
    if (++calls != fails_at) return of(arguments...);
    errno = error;
    return -1;
  }
};

void overwrite(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> out;
  for (const auto& each : std::filesystem::directory_iterator(path)) out.push_back(each.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

namespace fs = std::filesystem;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A folder as a killed run may leave it: two checkpoints, one that was begun, and what others have put there.
void make_used_folder(const std::string& folder) {
  for (const char* step : {"step-00000002", "step-00000004", "step-00000006"}) {
    fs::create_directories(folder + "/" + step);
    overwrite(folder + "/" + step + "/parameters-00000.safetensors", "weights");
  }
  for (const char* step : {"step-00000002", "step-00000004"})
    overwrite(folder + "/" + step + "/manifest.json", "manifest");
}
bool is_whole(const std::string& folder, const char* step) {
  return names_in(folder + "/" + step) == std::vector<std::string>{"manifest.json", "parameters-00000.safetensors"};
}

// What a start does before anything is read: the newest step, or what was said.
struct start_of_run {
  std::uint64_t newest = 0;
  std::string refused;
  std::vector<std::string> left;
};
start_of_run start_in(const std::string& folder, std::size_t keep) {
  start_of_run out;
  try {
    belay::checkpoint_folder<refusing_files> in(folder);
    in.lock();
    belay::checkpoint_contents found = in.sweep();
    if (!found.committed.empty()) out.newest = found.committed.back();
    for (const belay::checkpoint_contents& all : {found, in.keep(keep)})
      for (const belay::file_error& each : all.left) out.left.emplace_back(each.what());
  } catch (const belay::file_error& problem) {
    out.refused = problem.what();
  }
  return out;
}

}  // namespace

TEST_CASE("no question that fails is an answer: the newest is named and stays, an older one is told and stays") {
  const directory dir;
  const std::string folder = dir / "run";
  make_used_folder(folder);
  refusing_files::refuse(0, EIO);
  CHECK(start_in(folder, 1).newest == 4);
  CHECK(names_in(folder) == std::vector<std::string>{"step-00000004"});
  const std::size_t calls = refusing_files::calls;
  REQUIRE(calls > 15);
  for (const int error : {EIO, EACCES, ESTALE, ELOOP})
    for (std::size_t call = 1; call <= calls + 1; ++call) {
      CAPTURE(error);
      CAPTURE(call);
      fs::remove_all(folder);
      make_used_folder(folder);
      refusing_files::refuse(call, error);
      const start_of_run found = start_in(folder, 1);
      CHECK(is_whole(folder, "step-00000004"));
      const std::string reason = std::generic_category().message(error);
      if (!found.refused.empty()) {
        CHECK(contains(found.refused, reason));
        CHECK(contains(found.refused, folder));
      } else {
        CHECK(found.newest == 4);
        for (const std::string& each : found.left) CHECK(contains(each, reason));
      }
      // Whatever it was, the next start goes on as if nothing had been.
      refusing_files::refuse(0, EIO);
      CHECK(start_in(folder, 1).newest == 4);
      CHECK(names_in(folder) == std::vector<std::string>{"step-00000004"});
    }
  // Once more with one checkpoint alone, which a question must not make an unfinished one.
  for (std::size_t call = 1; call <= calls; ++call) {
    CAPTURE(call);
    fs::remove_all(folder);
    make_used_folder(folder);
    fs::remove_all(folder + "/step-00000002");
    fs::remove_all(folder + "/step-00000006");
    refusing_files::refuse(call, EIO);
    const start_of_run found = start_in(folder, 1);
    CHECK(is_whole(folder, "step-00000004"));
    CHECK((found.newest == 4 || !found.refused.empty()));
  }
}

TEST_CASE("an index that cannot be asked for is no missing one") {
  const directory dir;
  for (const char* name : {"/model.safetensors", "/model.safetensors.index.json"}) overwrite(dir.path + name, "old");
  refusing_files::refuse(0, EIO);
  CHECK(belay::safetensors::index_of<refusing_files>(dir.path).empty());
  for (const std::size_t call : {std::size_t{1}, std::size_t{2}}) {
    refusing_files::refuse(call, EIO);
    CHECK_THROWS_WITH_AS(static_cast<void>(belay::safetensors::index_of<refusing_files>(dir.path)),
                         doctest::Contains("cannot be examined: Input/output error"), belay::file_error);
  }
}
