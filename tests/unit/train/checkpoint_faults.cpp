// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Checkpoints while the machine fails: every call in turn is refused, or is the last before the power is cut, on a disk
// that keeps what was brought to it and any part of the rest. A committed checkpoint is never lost, and none is half.
#include <doctest/doctest.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "test_length.hpp"
#include "unit/train/support/checkpoint.hpp"

using namespace checkpoint_bench;

namespace {

// The machine's files. What changes them is noted, so that the disk can be made as it is after a power cut: a file has
// what it had at its last fsync, and of later writes some; a folder has the names of its last fsync, and of later
// changes some.
class simulated_disk {
 public:
  struct change {
    enum change_kind { made, wrote, synced_file, synced_folder, renamed, removed, made_folder, removed_folder } what;
    std::string path, to;  // of names
    int inode = 0;
    std::uint64_t offset = 0;
    std::string bytes;
  };

  void begin(std::size_t fails_at, int error, bool for_ever) {
    const std::lock_guard held(lock_);
    changes_.clear();
    open_.clear();
    calls_ = 0;
    fails_at_ = fails_at;
    error_ = error;
    for_ever_ = for_ever;
  }
  [[nodiscard]] std::size_t calls() const {
    const std::lock_guard held(lock_);
    return calls_;
  }

  // Whether this call is refused.
  [[nodiscard]] bool refused() {
    const std::lock_guard held(lock_);
    const std::size_t number = ++calls_;
    if (number != fails_at_ && !(for_ever_ && fails_at_ > 0 && number > fails_at_)) return false;
    errno = error_;
    return true;
  }
  [[nodiscard]] std::string path_of(int fd) const {
    const std::lock_guard held(lock_);
    return open_.at(fd);
  }
  void note_open(int fd, const std::string& path, bool creates) {
    const std::lock_guard held(lock_);
    if (creates) {
      inode_of_[path] = ++inodes_;
      changes_.push_back({change::made, path, "", inodes_, 0, ""});
    }
    open_[fd] = path;
  }
  void note_write(int fd, std::uint64_t offset, std::string bytes) {
    const std::lock_guard held(lock_);
    changes_.push_back({change::wrote, "", "", inode_of_[open_[fd]], offset, std::move(bytes)});
  }
  void note_sync(int fd) {
    const std::lock_guard held(lock_);
    const std::string& path = open_[fd];
    const bool folder = std::filesystem::is_directory(path);
    changes_.push_back({folder ? change::synced_folder : change::synced_file, path, "", inode_of_[path], 0, ""});
  }
  void note(change::change_kind what, const std::string& path, const std::string& to = "") {
    const std::lock_guard held(lock_);
    changes_.push_back({what, path, to, inode_of_[path], 0, ""});
    if (what == change::renamed) inode_of_[to] = inode_of_[path];
  }

  enum class survivors { none, all, some };
  // Writes what is on the disk after the power cut to the folder `target`, which stands for `root`. The steps whose
  // manifest was surely on it come back.
  std::set<std::uint64_t> after_power_cut(const std::string& root, const std::string& target, survivors kind,
                                          std::uint64_t seed) const {
    const std::lock_guard held(lock_);
    const auto survives = [&] {
      seed = seed * 6364136223846793005U + 1442695040888963407U;
      return kind == survivors::all || (kind == survivors::some && (seed >> 40U) % 2 == 0);
    };
    const auto apply_write = [](std::string& to, const change& one) {
      to.resize(std::max(to.size(), static_cast<std::size_t>(one.offset) + one.bytes.size()));
      to.replace(static_cast<std::size_t>(one.offset), one.bytes.size(), one.bytes);
    };
    std::map<int, std::string> content;
    std::map<int, std::vector<const change*>> pending;
    std::map<std::string, int> names;                                 // 0: a folder
    std::map<std::string, std::vector<const change*>> pending_names;  // by folder
    std::set<std::uint64_t> committed;
    const auto folder_of = [](const std::string& path) { return path.substr(0, path.rfind('/')); };
    const auto apply_name = [&](const change& one) {
      switch (one.what) {
        case change::made: names[one.path] = one.inode; break;
        case change::made_folder: names[one.path] = 0; break;
        case change::renamed: names.erase(one.path), names[one.to] = one.inode; break;
        default: names.erase(one.path);
      }
    };
    for (const change& one : changes_) {
      switch (one.what) {
        case change::wrote: pending[one.inode].push_back(&one); break;
        case change::synced_file:
          for (const change* each : pending[one.inode]) apply_write(content[one.inode], *each);
          pending[one.inode].clear();
          break;
        case change::synced_folder:
          for (const change* each : pending_names[one.path]) {
            apply_name(*each);
            const std::string& name = each->what == change::renamed ? each->to : each->path;
            if (!name.ends_with("/manifest.json")) continue;
            const std::uint64_t step = std::strtoul(name.substr(name.find("step-") + 5).c_str(), nullptr, 10);
            each->what == change::renamed ? static_cast<void>(committed.insert(step))
                                          : static_cast<void>(committed.erase(step));
          }
          pending_names[one.path].clear();
          break;
        default: pending_names[folder_of(one.path)].push_back(&one);
      }
    }
    // The removal of a manifest that is not yet on the disk may be there all the same.
    for (const auto& [folder, later] : pending_names)
      for (const change* each : later) {
        if (each->what == change::removed && each->path.ends_with("/manifest.json"))
          committed.erase(std::strtoul(each->path.substr(each->path.find("step-") + 5).c_str(), nullptr, 10));
      }
    for (const auto& [inode, later] : pending)
      for (const change* each : later)
        if (survives()) apply_write(content[inode], *each);
    for (const auto& [folder, later] : pending_names)
      for (const change* each : later)
        if (survives()) apply_name(*each);
    std::filesystem::create_directories(target);
    for (const auto& [path, inode] : names)
      if (inode == 0) std::filesystem::create_directories(target + path.substr(root.size()));
    for (const auto& [path, inode] : names) {
      const std::string place = target + path.substr(root.size());
      if (inode != 0 && std::filesystem::is_directory(folder_of(place))) overwrite(place, content[inode]);
    }
    return committed;
  }

 private:
  mutable std::mutex lock_;
  std::vector<change> changes_;
  std::map<std::string, int> inode_of_;
  std::map<int, std::string> open_;
  int inodes_ = 0;
  std::size_t calls_ = 0, fails_at_ = 0;
  int error_ = EIO;
  bool for_ever_ = false;
};

simulated_disk disk;

struct simulated_files : belay::posix_files {
  [[nodiscard]] static int open(const char* path, int flags, mode_t mode) {
    const bool creates = (flags & O_CREAT) != 0;
    if (disk.refused()) return -1;
    const int fd = posix_files::open(path, flags, mode);
    if (fd >= 0) disk.note_open(fd, path, creates);
    return fd;
  }
  [[nodiscard]] static ssize_t write_at(int fd, const void* from, std::size_t bytes, off_t offset) {
    if (disk.refused()) return -1;
    const ssize_t put = posix_files::write_at(fd, from, bytes, offset);
    if (put > 0)
      disk.note_write(fd, static_cast<std::uint64_t>(offset),
                      {static_cast<const char*>(from), static_cast<std::size_t>(put)});
    return put;
  }
  [[nodiscard]] static int sync(int fd) {
    if (disk.refused()) return -1;
    const int result = posix_files::sync(fd);
    if (result == 0) disk.note_sync(fd);
    return result;
  }
  [[nodiscard]] static int rename(const char* from, const char* to) {
    if (disk.refused()) return -1;
    const int result = posix_files::rename(from, to);
    if (result == 0) disk.note(simulated_disk::change::renamed, from, to);
    return result;
  }
  [[nodiscard]] static int remove(const char* path) {
    if (disk.refused()) return -1;
    const int result = posix_files::remove(path);
    if (result == 0) disk.note(simulated_disk::change::removed, path);
    return result;
  }
  [[nodiscard]] static int make_folder(const char* path, mode_t mode) {
    if (disk.refused()) return -1;
    const int result = posix_files::make_folder(path, mode);
    if (result == 0) disk.note(simulated_disk::change::made_folder, path);
    return result;
  }
  [[nodiscard]] static int remove_in(int folder, const char* name) {
    if (disk.refused()) return -1;
    const int result = posix_files::remove_in(folder, name);
    if (result == 0) disk.note(simulated_disk::change::removed, disk.path_of(folder) + "/" + name);
    return result;
  }
  // What changes nothing.
  [[nodiscard]] static ssize_t read_at(int fd, void* to, std::size_t bytes, off_t offset) {
    return disk.refused() ? -1 : posix_files::read_at(fd, to, bytes, offset);
  }
  [[nodiscard]] static int ask(const char* path, struct stat& facts) {
    return disk.refused() ? -1 : posix_files::ask(path, facts);
  }
  [[nodiscard]] static int ask_link(const char* path, struct stat& facts) {
    return disk.refused() ? -1 : posix_files::ask_link(path, facts);
  }
  [[nodiscard]] static int ask_open(int fd, struct stat& facts) {
    return disk.refused() ? -1 : posix_files::ask_open(fd, facts);
  }
  [[nodiscard]] static ssize_t list(int folder, void* to, std::size_t bytes) {
    return disk.refused() ? -1 : posix_files::list(folder, to, bytes);
  }
  [[nodiscard]] static int lock(int folder) { return disk.refused() ? -1 : posix_files::lock(folder); }
  // What the simulated disk does not know, and a power cut takes or leaves.
  [[nodiscard]] static int permit(int fd, mode_t mode) { return disk.refused() ? -1 : posix_files::permit(fd, mode); }
  [[nodiscard]] static int reserve(int fd, off_t bytes) {
    return disk.refused() ? -1 : posix_files::reserve(fd, bytes);
  }
  [[nodiscard]] static int resize(int fd, off_t bytes) { return disk.refused() ? -1 : posix_files::resize(fd, bytes); }
  [[nodiscard]] static int make_direct(int fd) { return disk.refused() ? -1 : posix_files::make_direct(fd); }
  [[nodiscard]] static int make_buffered(int fd) { return disk.refused() ? -1 : posix_files::make_buffered(fd); }
  [[nodiscard]] static int remove_folder(const char* path) {
    if (disk.refused()) return -1;
    const int result = posix_files::remove_folder(path);
    if (result == 0) disk.note(simulated_disk::change::removed_folder, path);
    return result;
  }
};

settings run_in(const std::string& folder) {
  settings out;
  out.ranks = 2;
  out.steps = 6;
  out.saved = {.folder = folder, .every = 2, .keep = 1, .ring_bytes = 0};
  return out;
}

// The state after each step, of the run that nothing disturbs.
const record& undisturbed() {
  static const record out = [] {
    settings with = run_in("");
    return train(with);
  }();
  return out;
}

std::optional<std::string> failure_of(const settings& with, record& out) {
  try {
    out = train<float, simulated_files>(with);
  } catch (const belay::error& problem) {
    return problem.what();
  }
  return std::nullopt;
}

// All calls in a soak, else some: 15 of them, or 5 under a sanitizer.
std::size_t stride(std::size_t calls) { return is_soak() ? 1 : calls / (only_a_sample() ? 5 : 15) + 1; }

}  // namespace

TEST_CASE("a call that fails is named, training goes on, and what was committed stays") {
  const directory dir;
  disk.begin(0, EIO, false);
  record found;
  REQUIRE(!failure_of(run_in(dir / "0"), found));
  const std::size_t calls = disk.calls();
  CHECK(calls > 40);
  for (const int error : {EIO, ENOSPC}) {
    for (std::size_t call = 1; call <= calls + 2; call += stride(calls)) {
      CAPTURE(call);
      const std::string folder = dir / std::to_string(call);
      std::filesystem::remove_all(folder);
      disk.begin(call, error, false);
      const std::optional<std::string> said = failure_of(run_in(folder), found);
      if (said) {  // at the end only: the last checkpoint is not there
        CAPTURE(*said);
        CHECK(said->find(std::generic_category().message(error)) != std::string::npos);
        CHECK(said->find(folder) != std::string::npos);
      } else {
        REQUIRE(found.losses.size() == 6);
        CHECK(found.losses == undisturbed().losses);
      }
      const record resumed = train([&] {
        settings again = run_in(folder);
        again.ranks = 3;
        return again;
      }());
      CHECK(resumed.from.step >= (said ? 0U : 4U));
      CHECK(apart(resumed.at.at(resumed.from.step), undisturbed().at.at(resumed.from.step)) < 1e-6);
      for (const std::string& name : names_in(folder)) CHECK(name.starts_with("step-"));
      CHECK(names_in(folder).size() == 1);
    }
  }
}

TEST_CASE("after a power cut at any call the newest committed checkpoint is there, whole") {
  const directory dir;
  disk.begin(0, EIO, false);
  record found;
  REQUIRE(!failure_of(run_in(dir / "0"), found));
  const std::size_t calls = disk.calls();
  std::size_t lost = 0, resumed_runs = 0;
  for (std::size_t call = 1; call <= calls; call += stride(calls)) {
    const std::string folder = dir / ("cut" + std::to_string(call));
    disk.begin(call, EIO, true);
    static_cast<void>(failure_of(run_in(folder), found));
    for (const auto kind :
         {simulated_disk::survivors::none, simulated_disk::survivors::all, simulated_disk::survivors::some}) {
      CAPTURE(call);
      CAPTURE(static_cast<int>(kind));
      const std::string image = folder + "-" + std::to_string(static_cast<int>(kind));
      const std::set<std::uint64_t> committed = disk.after_power_cut(folder, image, kind, call);
      for (const int ranks : {2, 3}) {
        settings again = run_in(image);
        again.ranks = ranks;
        again.steps = 0;
        const record resumed = train(again);
        ++resumed_runs;
        if (!committed.empty()) {
          CHECK(resumed.from.step >= *committed.rbegin());
        }
        const double difference = apart(resumed.at.at(resumed.from.step), undisturbed().at.at(resumed.from.step));
        CHECK(difference == 0);
        lost += difference != 0 ? 1 : 0;
      }
    }
  }
  CHECK(lost == 0);
  CHECK(resumed_runs >= 24);
}
