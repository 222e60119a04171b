// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Writes a model into a folder: one model.safetensors, or where that would be too large several files and the index
// that other libraries read them by. As of a `writer`, each file appears whole or not at all; the index is the last.
//
//   belay::safetensors::folder_writer out("models/mine", declarations);
//   out.write("lm_head.weight", first_element, std::span<const float>(part));
//   out.commit();
// IWYU pragma: private, include "belay/train/safetensors.hpp"
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/train/safetensors/file.hpp"
#include "belay/train/safetensors/header.hpp"
#include "belay/train/safetensors/stored_type.hpp"
#include "belay/train/safetensors/writer.hpp"

namespace belay::inline BELAY_ABI {
namespace safetensors {

/// Bytes of tensors that go into one file; a larger tensor has a file of its own, and a header is not counted.
inline constexpr std::uint64_t largest_file = std::uint64_t{4} << 30;

/// Which tensors go into which file of a folder, in their order; a tensor is never cut.
class file_division {
 public:
  file_division(const std::vector<declaration>& tensors, std::uint64_t largest);

  [[nodiscard]] std::size_t files() const noexcept { return files_.size(); }
  [[nodiscard]] const std::vector<declaration>& tensors_of(std::size_t number) const noexcept { return files_[number]; }
  /// "model.safetensors", or "model-00002-of-00003.safetensors".
  [[nodiscard]] std::string name_of(std::size_t number) const;
  [[nodiscard]] static std::string index_name() { return "model.safetensors.index.json"; }
  /// All files of the folder.
  [[nodiscard]] std::vector<std::string> names() const;
  /// The index, sorted by name as other libraries write it.
  [[nodiscard]] std::string index() const;

 private:
  std::vector<std::vector<declaration>> files_;
  std::uint64_t in_last_ = 0;
  std::uint64_t total_ = 0;
};

/// Writes the index of the folder `path`, whose files are in their places, as a file that appears in full; until then
/// its name ends in ".tmp-" and `mark`. A model.safetensors, of an earlier model in one file, would be read in its
/// place, and is removed.
template <files_policy Files>
void publish_index(const std::string& path, const std::string& index, const std::string& mark, where at) {
  const std::string name = path + "/" + file_division::index_name();
  const std::string temporary = name + ".tmp-" + mark;
  const auto out = basic_file<Files>::create_new(temporary, at);
  if (!out.is_open()) throw file_error(temporary, 0, "is in the way", at);
  try {
    out.write(0, std::as_bytes(std::span<const char>(index.data(), index.size())), at);
    out.permit(0644, at);
    out.sync(at);
    if (Files::rename(temporary.c_str(), name.c_str()) != 0)
      throw file_error(name, 0, "cannot be replaced: " + reason(errno), at);
  } catch (...) {
    static_cast<void>(Files::remove(temporary.c_str()));
    throw;
  }
  const std::string alone = path + "/model.safetensors";
  if (Files::remove(alone.c_str()) != 0 && errno != ENOENT)
    throw file_error(alone, 0, "cannot be removed: " + reason(errno), at);
  sync_folder<Files>(path, at);
}

/// `write` may be called from several threads. A folder that must appear whole or not at all is written beside its
/// place, and renamed.
template <files_policy Files>
class basic_folder_writer {
 public:
  /// Creates the temporary files in `path`, a folder that is there, and writes their headers.
  basic_folder_writer(std::string path, const file_division& division, where at = where::current())
      : path_(std::move(path)) {
    if (division.files() > 1) index_ = division.index();
    for (std::size_t number = 0; number < division.files(); ++number) {
      files_.emplace_back(path_ + "/" + division.name_of(number), division.tensors_of(number), usual_metadata(), at);
      for (const declaration& each : division.tensors_of(number)) file_of_.emplace(each.name, number);
    }
  }
  explicit basic_folder_writer(std::string path, const std::vector<declaration>& tensors,
                               std::uint64_t largest = largest_file, where at = where::current())
      : basic_folder_writer(std::move(path), file_division(tensors, largest), at) {}

  [[nodiscard]] std::size_t files() const noexcept { return files_.size(); }

  /// Writes elements of tensor `name` from `first_element` on, in row-major order, to the file that has it. Calls may
  /// come in any order and from several threads, as long as every element is written exactly once. Throws usage_error
  /// for a tensor that was not declared.
  template <class T>
  void write(std::string_view name, std::uint64_t first_element, std::span<const T> source,
             where at = where::current()) {
    const auto found = file_of_.find(name);
    if (found == file_of_.end()) throw usage_error("tensor " + printable(std::string(name)) + " was not declared", at);
    files_[found->second].write(name, first_element, source, at);
  }

  /// Checks that every tensor of every file was written once, then gives all files their names, the index last.
  void commit(where at = where::current()) {
    for (auto& each : files_) each.finish(at);
    for (auto& each : files_) each.commit(at);
    if (!index_.empty()) publish_index<Files>(path_, index_, "index", at);
  }

 private:
  std::string path_;
  std::string index_;  // empty where there is one file
  std::deque<basic_writer<Files>> files_;
  std::map<std::string, std::size_t, std::less<>> file_of_;
};

using folder_writer = basic_folder_writer<posix_files>;

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/safetensors/folder_writer.ipp"  // IWYU pragma: export
#endif
