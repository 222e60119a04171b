// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A folder of checkpoints, each a folder "step-00000050" in it. One is committed when it has its manifest: before that
// it is a leftover, which the next start sweeps. Only files with names that checkpoints have are ever removed, and only
// from folders: what is behind a link stays. A question that the system cannot answer is no answer.
// IWYU pragma: private, include "belay/train/checkpoint.hpp"
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/where.hpp"
#include "belay/train/safetensors/file.hpp"

namespace belay::inline BELAY_ABI {

inline constexpr std::string_view manifest_name = "manifest.json";
inline constexpr std::string_view unfinished_manifest_name = "manifest.json.tmp";

/// "step-00000050".
[[nodiscard]] BELAY_DECL std::string checkpoint_name(std::uint64_t step);
/// "parameters-00003.safetensors": of `group`, the file that rank 3 writes.
[[nodiscard]] BELAY_DECL std::string checkpoint_file_name(std::string_view group, int rank);

/// The step as files of a checkpoint say it, in as many bytes for every step: "000000000050".
[[nodiscard]] BELAY_DECL std::string padded_step(std::uint64_t step);

/// 16 hexadecimal digits for a run, which all of its files have.
[[nodiscard]] BELAY_DECL std::string random_checkpoint_id(where at);

/// The content of a folder of checkpoints, and what was done there.
struct checkpoint_contents {
  /// Steps, ascending: of committed checkpoints; of folders that have no manifest; of what was removed.
  std::vector<std::uint64_t> committed = {}, unfinished = {}, removed = {};
  /// Paths that have the name of a checkpoint and stay as they are: a link or a file, what cannot be removed, and what
  /// is older than a committed checkpoint and cannot be examined. Each with its path and the reason.
  std::vector<file_error> left = {};
};

/// A folder of checkpoints at `path`, without changing it, except where a function says so. Links of that name are read
/// through, and nothing is ever removed behind one. Errors are file_error.
template <folders_policy Files = posix_files>
class checkpoint_folder {
 public:
  explicit checkpoint_folder(std::string path) : path_(std::move(path)) {}

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::string path_of(std::uint64_t step) const { return path_ + "/" + checkpoint_name(step); }

  /// The content; nothing where there is no such folder. Throws file_error where the system cannot say what the
  /// newest is: it may be a checkpoint, which nobody is to remove or to begin before.
  [[nodiscard]] checkpoint_contents look(where at = where::current()) const;
  /// The steps of committed checkpoints, ascending.
  [[nodiscard]] std::vector<std::uint64_t> committed(where at = where::current()) const { return look(at).committed; }

  /// Makes it, and takes a lock on it that ends with this object or the process. A folder that another run has locked
  /// is a file_error.
  void lock(where at = where::current());

  /// Commits the checkpoint of `step`, whose other files are on their medium: its manifest is `text`, on the medium
  /// when this returns.
  void commit(std::uint64_t step, const std::string& text, where at = where::current()) const;

  /// Removes what is not committed, of steps before `end`.
  checkpoint_contents sweep(std::uint64_t end = ~std::uint64_t{0}, where at = where::current()) const;

  /// Removes the committed checkpoints but for the newest `count`; 0: none is removed.
  checkpoint_contents keep(std::size_t count, where at = where::current()) const;

  /// Removes files that a rank has written for the checkpoint in `folder`, which is given up.
  static void discard(const std::string& folder, const std::vector<std::string>& names);

 private:
  using file = safetensors::basic_file<Files>;
  enum class folder_state { committed, unfinished, other, gone };
  static constexpr const char* not_ours = "is no folder of a checkpoint, and is left as it is";

  // A manifest that is a link to what is not there was committed once.
  [[nodiscard]] folder_state kind_of(std::uint64_t step, where at) const;
  [[nodiscard]] bool is_folder(std::uint64_t step, checkpoint_contents& out, where at) const;

  // "step-" and digits alone.
  [[nodiscard]] std::vector<std::uint64_t> steps(where at) const;
  [[noreturn]] void refuse_list(int number, where at) const;
  [[nodiscard]] static std::vector<std::string> names_in(const file& folder, where at);
  [[nodiscard]] static bool is_ours(std::string_view name) noexcept {
    return name == manifest_name || name == unfinished_manifest_name ||
           ((name.starts_with("parameters-") || name.starts_with("optimizer-")) && name.ends_with(".safetensors"));
  }

  // With the folders that it lies in.
  static void make(const std::string& path, where at);

  void remove(std::uint64_t step, checkpoint_contents& out, where at) const;
  // Its manifest first, and that brought to the medium, so that half of a checkpoint is never a committed one.
  static void remove(const std::string& folder, where at);

  std::string path_;
  file lock_;
};

template <folders_policy Files>
checkpoint_contents checkpoint_folder<Files>::look(where at) const {
  checkpoint_contents out;
  std::vector<std::uint64_t> all = steps(at);
  for (; !all.empty(); all.pop_back()) {
    const std::uint64_t step = all.back();
    try {
      switch (kind_of(step, at)) {
        case folder_state::committed: out.committed.push_back(step); break;
        case folder_state::unfinished: out.unfinished.push_back(step); break;
        case folder_state::other: out.left.push_back(file_error(path_of(step), 0, not_ours, at)); break;
        case folder_state::gone: break;
      }
    } catch (const file_error& problem) {
      if (out.committed.empty()) throw;
      out.left.push_back(problem);
    }
  }
  std::reverse(out.committed.begin(), out.committed.end());
  std::reverse(out.unfinished.begin(), out.unfinished.end());
  return out;
}

template <folders_policy Files>
void checkpoint_folder<Files>::lock(where at) {
  make(path_, at);
  lock_ = file(path_, O_RDONLY | O_DIRECTORY, at);
  if (Files::lock(lock_.descriptor()) == 0) return;
  if (errno == EWOULDBLOCK) throw file_error(path_, 0, "another run writes its checkpoints there", at);
  // A file system without locks has no other run known. What fails at the question may have one.
  if (errno == EIO || errno == ESTALE || errno == EACCES)
    throw file_error(path_, 0, "cannot be locked: " + safetensors::reason(errno), at);
}

template <folders_policy Files>
void checkpoint_folder<Files>::commit(std::uint64_t step, const std::string& text, where at) const {
  const std::string folder = path_of(step);
  const std::string unfinished = folder + "/" + std::string(unfinished_manifest_name);
  const std::string final_name = folder + "/" + std::string(manifest_name);
  static_cast<void>(Files::remove(unfinished.c_str()));
  {
    const auto out = file::create_new(unfinished, at);
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

template <folders_policy Files>
checkpoint_contents checkpoint_folder<Files>::sweep(std::uint64_t end, where at) const {
  checkpoint_contents out = look(at);
  for (const std::uint64_t step : out.unfinished)
    if (step < end) remove(step, out, at);
  return out;
}

template <folders_policy Files>
checkpoint_contents checkpoint_folder<Files>::keep(std::size_t count, where at) const {
  if (count == 0) return {};
  checkpoint_contents out = look(at);
  std::size_t kept = 0;
  for (std::size_t i = out.committed.size(); i-- > 0;)
    if (is_folder(out.committed[i], out, at) && ++kept > count) remove(out.committed[i], out, at);
  return out;
}

template <folders_policy Files>
void checkpoint_folder<Files>::discard(const std::string& folder, const std::vector<std::string>& names) {
  const file in = file::attempt(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (!in.is_open()) return;
  for (const std::string& each : names) static_cast<void>(Files::remove_in(in.descriptor(), each.c_str()));
}

template <folders_policy Files>
auto checkpoint_folder<Files>::kind_of(std::uint64_t step, where at) const -> folder_state {
  const std::string folder = path_of(step), manifest = folder + "/" + std::string(manifest_name);
  if (safetensors::facts_of<Files>(manifest, at)) return folder_state::committed;
  if (safetensors::link_facts_of<Files>(manifest, at))
    throw file_error(manifest, 0, "is a link to what is not there", at);
  const auto found = safetensors::link_facts_of<Files>(folder, at);
  if (!found) return folder_state::gone;
  return S_ISDIR(found->st_mode) ? folder_state::unfinished : folder_state::other;
}

template <folders_policy Files>
bool checkpoint_folder<Files>::is_folder(std::uint64_t step, checkpoint_contents& out, where at) const {
  try {
    const auto found = safetensors::link_facts_of<Files>(path_of(step), at);
    if (found && S_ISDIR(found->st_mode)) return true;
    out.left.push_back(file_error(path_of(step), 0, "is a link, which is left with what is behind it", at));
  } catch (const file_error& problem) {
    out.left.push_back(problem);
  }
  return false;
}

template <folders_policy Files>
std::vector<std::uint64_t> checkpoint_folder<Files>::steps(where at) const {
  std::vector<std::uint64_t> out;
  const file in = file::attempt(path_, O_RDONLY | O_DIRECTORY);
  if (!in.is_open()) {
    if (errno == ENOENT) return out;
    refuse_list(errno, at);
  }
  for (const std::string& name : names_in(in, at)) {
    if (!name.starts_with("step-")) continue;
    std::uint64_t step = 0;
    const auto [end, wrong] = std::from_chars(name.data() + 5, name.data() + name.size(), step);
    if (wrong == std::errc{} && end == name.data() + name.size() && checkpoint_name(step) == name) out.push_back(step);
  }
  std::sort(out.begin(), out.end());
  return out;
}

template <folders_policy Files>
void checkpoint_folder<Files>::refuse_list(int number, where at) const {
  throw file_error(path_, 0,
                   "cannot be listed as a folder of checkpoints: " + safetensors::reason(number) +
                       (number == ENOTDIR ? "; name a folder, or what is none yet" : ""),
                   at);
}

template <folders_policy Files>
std::vector<std::string> checkpoint_folder<Files>::names_in(const file& folder, where at) {
  std::vector<std::string> out;
  alignas(dirent64) char entries[4096];
  while (true) {
    const ssize_t got = Files::list(folder.descriptor(), entries, sizeof entries);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw file_error(folder.path(), 0, "cannot be listed: " + safetensors::reason(errno), at);
    if (got == 0) return out;
    for (ssize_t next = 0; next < got;) {
      const auto* const entry = reinterpret_cast<const dirent64*>(entries + next);
      next += entry->d_reclen;
      out.emplace_back(entry->d_name);
    }
  }
}

template <folders_policy Files>
void checkpoint_folder<Files>::make(const std::string& path, where at) {
  const auto attempt = [&] { return Files::make_folder(path.c_str(), 0777) == 0 ? 0 : errno; };
  int wrong = attempt();
  const std::size_t end = path.find_last_not_of('/');
  const std::size_t slash = end == std::string::npos ? end : path.rfind('/', end);
  if (wrong == ENOENT && slash != std::string::npos && slash > 0) {
    make(path.substr(0, slash), at);
    wrong = attempt();
  }
  if (wrong != 0 && wrong != EEXIST) throw file_error(path, 0, "cannot be made: " + safetensors::reason(wrong), at);
}

template <folders_policy Files>
void checkpoint_folder<Files>::remove(std::uint64_t step, checkpoint_contents& out, where at) const {
  try {
    remove(path_of(step), at);
    out.removed.push_back(step);
  } catch (const file_error& problem) {
    out.left.push_back(problem);
  }
}

template <folders_policy Files>
void checkpoint_folder<Files>::remove(const std::string& folder, where at) {
  const file in(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, at);
  const auto remove_file = [&](const std::string& name) {
    return Files::remove_in(in.descriptor(), name.c_str()) == 0 ? 0 : errno;
  };
  const auto refuse = [&](const std::string& path, int number) {
    throw file_error(path, 0, "cannot be removed, and is left: " + safetensors::reason(number), at);
  };
  const std::string manifest(manifest_name);
  const int wrong = remove_file(manifest);
  if (wrong == 0) in.sync(at);
  if (wrong != 0 && wrong != ENOENT) refuse(folder + "/" + manifest, wrong);
  std::optional<std::pair<std::string, int>> first;
  for (const std::string& name : names_in(in, at))
    if (is_ours(name))
      if (const int failed = remove_file(name); failed != 0 && failed != ENOENT && !first) first.emplace(name, failed);
  if (first) refuse(folder + "/" + first->first, first->second);
  // Where somebody keeps other files in it, it stays.
  if (Files::remove_folder(folder.c_str()) != 0 && errno != ENOENT && errno != ENOTEMPTY && errno != EEXIST)
    refuse(folder, errno);
}

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/checkpoint/checkpoint_folder.ipp"  // IWYU pragma: export
#endif
