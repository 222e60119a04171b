// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A folder of checkpoints, each a folder "step-00000050" in it. One is committed when it has its manifest: before that
// it is a leftover, which the next start sweeps. Only files with names that checkpoints have are ever removed.
// IWYU pragma: private, include "belay/train/checkpoint.hpp"
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hexadecimal.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/core/where.hpp"
#include "belay/train/safetensors/file.hpp"

namespace belay::inline BELAY_ABI {

inline constexpr std::string_view manifest_name = "manifest.json";
inline constexpr std::string_view unfinished_manifest_name = "manifest.json.tmp";

/// "step-00000050".
[[nodiscard]] inline std::string checkpoint_name(std::uint64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "step-%08llu", static_cast<unsigned long long>(step));
  return text;
}
/// "parameters-00003.safetensors": of `group`, the file that rank 3 writes.
[[nodiscard]] inline std::string checkpoint_file_name(std::string_view group, int rank) {
  char text[32];
  std::snprintf(text, sizeof text, "-%05d.safetensors", rank);
  return std::string(group) + text;
}

/// The step as files of a checkpoint say it, in as many bytes for every step: "000000000050".
[[nodiscard]] inline std::string padded_step(std::uint64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "%012llu", static_cast<unsigned long long>(step));
  return text;
}

/// 16 hexadecimal digits for a run, which all of its files have.
[[nodiscard]] inline std::string random_checkpoint_id(where at) {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != static_cast<ssize_t>(sizeof random))
    throw file_error("getrandom", 0, "no number can be drawn for a checkpoint", at);
  std::string out;
  append_hex(out, random, 16);
  return out;
}

/// What lies at `path`, without changing it, except where a function says so. Errors are file_error.
template <folders_policy Files = posix_files>
class checkpoint_folder {
 public:
  explicit checkpoint_folder(std::string path) : path_(std::move(path)) {}

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::string path_of(std::uint64_t step) const { return path_ + "/" + checkpoint_name(step); }

  /// The steps of committed checkpoints, ascending; none where there is no such folder.
  [[nodiscard]] std::vector<std::uint64_t> committed(where at = where::current()) const {
    std::vector<std::uint64_t> out;
    for (const std::uint64_t step : steps(at))
      if (exists(path_of(step) + "/" + std::string(manifest_name))) out.push_back(step);
    return out;
  }

  /// Makes it, and takes a lock on it that ends with this object or the process. A folder that another run has locked
  /// is a file_error.
  void lock(where at = where::current()) {
    std::error_code wrong;
    std::filesystem::create_directories(path_, wrong);
    if (wrong) throw file_error(path_, 0, "cannot be made: " + wrong.message(), at);
    lock_.reset(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!lock_) throw file_error(path_, 0, "cannot be opened: " + safetensors::reason(errno), at);
    // A file system without locks has no other run known.
    if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      throw file_error(path_, 0, "another run writes its checkpoints there", at);
  }

  /// Commits the checkpoint of `step`, whose other files are on their medium: its manifest is `text`, on the medium
  /// when this returns.
  void commit(std::uint64_t step, const std::string& text, where at = where::current()) const {
    const std::string folder = path_of(step);
    const std::string unfinished = folder + "/" + std::string(unfinished_manifest_name);
    const std::string final_name = folder + "/" + std::string(manifest_name);
    static_cast<void>(Files::remove(unfinished.c_str()));
    {
      const auto out = safetensors::basic_file<Files>::create_new(unfinished, at);
      if (!out.is_open()) throw file_error(unfinished, 0, "is in the way", at);
      out.write(0, std::as_bytes(std::span<const char>(text)), at);
      out.permit(0644, at);
      out.sync(at);
    }
    safetensors::sync_folder<Files>(path_, at);  // the name of this checkpoint's folder
    if (Files::rename(unfinished.c_str(), final_name.c_str()) != 0)
      throw file_error(final_name, 0, "cannot be given its name: " + safetensors::reason(errno), at);
    safetensors::sync_folder<Files>(folder, at);
  }

  /// Removes what is not committed, of steps before `end`, and says of which.
  std::vector<std::uint64_t> sweep(std::uint64_t end = ~std::uint64_t{0}, where at = where::current()) const {
    std::vector<std::uint64_t> out;
    for (const std::uint64_t step : steps(at))
      if (step < end && !exists(path_of(step) + "/" + std::string(manifest_name))) {
        remove(step, at);
        out.push_back(step);
      }
    return out;
  }

  /// Removes the committed checkpoints but for the newest `count`; 0: none is removed.
  void keep(std::size_t count, where at = where::current()) const {
    const std::vector<std::uint64_t> all = committed(at);
    for (std::size_t i = 0; count > 0 && i + count < all.size(); ++i) remove(all[i], at);
  }

 private:
  [[nodiscard]] static bool exists(const std::string& path) noexcept {
    struct stat found = {};
    return ::stat(path.c_str(), &found) == 0;
  }
  // "step-" and digits alone.
  [[nodiscard]] std::vector<std::uint64_t> steps(where at) const {
    std::vector<std::uint64_t> out;
    for (const std::string& name : names_in(path_, at)) {
      if (!name.starts_with("step-")) continue;
      std::uint64_t step = 0;
      const auto [end, wrong] = std::from_chars(name.data() + 5, name.data() + name.size(), step);
      if (wrong == std::errc{} && end == name.data() + name.size() && checkpoint_name(step) == name)
        out.push_back(step);
    }
    std::sort(out.begin(), out.end());
    return out;
  }
  [[nodiscard]] static std::vector<std::string> names_in(const std::string& folder, where at) {
    std::vector<std::string> out;
    std::error_code wrong;
    std::filesystem::directory_iterator entries(folder, wrong);
    for (; !wrong && entries != std::filesystem::directory_iterator(); entries.increment(wrong))
      out.push_back(entries->path().filename().string());
    if (wrong && wrong != std::errc::no_such_file_or_directory)
      throw file_error(folder, 0,
                       "cannot be listed as a folder of checkpoints: " + wrong.message() +
                           (wrong == std::errc::not_a_directory ? "; name a folder, or what is none yet" : ""),
                       at);
    return out;
  }
  [[nodiscard]] static bool is_ours(std::string_view name) noexcept {
    return name == manifest_name || name == unfinished_manifest_name ||
           ((name.starts_with("parameters-") || name.starts_with("optimizer-")) && name.ends_with(".safetensors"));
  }

  // Its manifest first, so that half of a checkpoint is never a committed one.
  void remove(std::uint64_t step, where at) const {
    const std::string folder = path_of(step);
    const auto remove_file = [&](const std::string& name) {
      const std::string path = folder + "/" + name;
      if (Files::remove(path.c_str()) != 0 && errno != ENOENT)
        throw file_error(path, 0, "cannot be removed: " + safetensors::reason(errno), at);
    };
    if (exists(folder + "/" + std::string(manifest_name))) {
      remove_file(std::string(manifest_name));
      safetensors::sync_folder<Files>(folder, at);
    }
    for (const std::string& name : names_in(folder, at))
      if (is_ours(name)) remove_file(name);
    // Where somebody keeps other files in it, it stays.
    if (Files::remove_folder(folder.c_str()) != 0 && errno != ENOENT && errno != ENOTEMPTY && errno != EEXIST)
      throw file_error(folder, 0, "cannot be removed: " + safetensors::reason(errno), at);
  }

  std::string path_;
  unique_fd lock_;
};

}  // namespace belay::inline BELAY_ABI
