// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A model's tensors wherever they lie: in one file, in a folder's model.safetensors, or in several files that the
// folder's model.safetensors.index.json names. All of it, or what holds the tensors that are needed, is opened and
// checked first; then ranges are read as from one file.
//
//   const belay::safetensors::folder in("models/mixtral");
//   in.read_converted("lm_head.weight", first_element, std::span<float>(part));
//
// A model is written (by a `writer`) as one model.safetensors, or where that would be too large as several files and
// the index that other libraries read them by.
// IWYU pragma: private, include "belay/train/safetensors.hpp"
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
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
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/train/safetensors/file.hpp"
#include "belay/train/safetensors/header.hpp"
#include "belay/train/safetensors/reader.hpp"

namespace belay::inline BELAY_ABI {
namespace safetensors {

/// Tensors of an index, each with the name of its file, in the order of the text.
using weight_map = std::vector<std::pair<std::string, std::string>>;

/// Bytes of an index that are read: some hundred thousand tensors.
inline constexpr std::uint64_t largest_index = std::uint64_t{1} << 26;

/// Reads the text of an index: an object with `weight_map`, and others that are ignored. `path` names it in errors,
/// which are file_error: other JSON, a tensor twice, a file that is not beside the index.
[[nodiscard]] BELAY_DECL weight_map parse_index(std::string_view text, const std::string& path, where at);

/// The index by which a folder is read: its path, or nothing where `path` is a file or has model.safetensors. Throws
/// file_error where the system cannot say which is there.
template <files_policy Files = posix_files>
[[nodiscard]] std::string index_of(const std::string& path, where at = where::current()) {
  const std::string index = path + "/model.safetensors.index.json";
  return facts_of<Files>(index, at) && !facts_of<Files>(path + "/model.safetensors", at) ? index : "";
}

/// Reads an index. Errors are file_error, as of `parse_index`.
template <files_policy Files = posix_files>
[[nodiscard]] weight_map read_index(const std::string& index, where at = where::current()) {
  const basic_file<Files> in(index, O_RDONLY | O_NONBLOCK, at);
  const std::uint64_t size = in.size(at);
  if (size > largest_index) throw file_error(index, 0, "has " + std::to_string(size) + " bytes", at);
  std::string text(static_cast<std::size_t>(size), '\0');
  in.read(0, std::as_writable_bytes(std::span<char>(text.data(), text.size())), at);
  return parse_index(text, index, at);
}

/// Several threads may read at once.
template <files_policy Files>
class basic_folder {
 public:
  /// `path` is a file, or a folder with model.safetensors or else model.safetensors.index.json. Anything wrong with it
  /// is a file_error: also a tensor that its file lacks, one that the index does not have, and one in two files.
  explicit basic_folder(const std::string& path, where at = where::current());
  /// `path` is a file, or a folder with model.safetensors or else model.safetensors.index.json, of which only the files
  /// that hold the tensors `needed` are opened. A name that is not there is a file_error, as is anything wrong with
  /// those files.
  basic_folder(const std::string& path, std::span<const std::string> needed, where at = where::current());

  basic_folder(basic_folder&&) = default;
  basic_folder& operator=(basic_folder&&) = default;
  ~basic_folder();

  /// The file, or that of the index.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// All tensors of the files that are open, file by file; valid as long as the folder.
  [[nodiscard]] const std::vector<tensor>& tensors() const noexcept { return tensors_; }
  [[nodiscard]] std::size_t files() const noexcept { return files_.size(); }
  /// The tensor called `name`, or null.
  [[nodiscard]] const tensor* find(std::string_view name) const noexcept {
    return find_tensor(tensors_, by_name_, name);
  }

  /// Throws file_error where tensor `name` is not there, or has another shape.
  void expect_shape(std::string_view name, std::span<const std::uint64_t> shape, where at = where::current()) const;

  /// Fills `destination` with the elements of tensor `name` from `first_element` on, in row-major order. `read`
  /// converts nothing: the stored type must be that of T. `read_converted` takes F64, F32, F16 or BF16, rounded to
  /// nearest where T is narrower. A range outside of the tensor is a usage_error.
  template <class T>
  void read(std::string_view name, std::uint64_t first_element, std::span<T> destination,
            where at = where::current()) const;
  template <class T>
  void read_converted(std::string_view name, std::uint64_t first_element, std::span<T> destination,
                      where at = where::current()) const;

 private:
  enum extent { all, some };

  void open(std::span<const std::string> needed, extent which, where at);
  void open_index(const std::string& index, std::span<const std::string> needed, extent which, where at);
  void add(const std::string& name, where at);
  void sort(where at);
  [[nodiscard]] const basic_reader<Files>& file_with(std::string_view name, where at) const;

  std::string path_;
  std::deque<basic_reader<Files>> files_;
  std::vector<tensor> tensors_;
  std::vector<std::size_t> file_of_;  // of each tensor
  std::vector<std::size_t> by_name_;
};

template <files_policy Files>
basic_folder<Files>::basic_folder(const std::string& path, where at) : path_(path) {
  open({}, all, at);
}

template <files_policy Files>
basic_folder<Files>::basic_folder(const std::string& path, std::span<const std::string> needed, where at)
    : path_(path) {
  open(needed, some, at);
}

template <files_policy Files>
void basic_folder<Files>::expect_shape(std::string_view name, std::span<const std::uint64_t> shape, where at) const {
  const basic_reader<Files>& in = file_with(name, at);
  const std::vector<std::uint64_t>& found = find(name)->shape;
  if (std::equal(found.begin(), found.end(), shape.begin(), shape.end())) return;
  throw file_error(in.path(), 0,
                   "tensor " + printable(name) + " is " + shape_text(found) + ", " + shape_text(shape) + " is needed",
                   at);
}

template <files_policy Files>
template <class T>
void basic_folder<Files>::read(std::string_view name, std::uint64_t first_element, std::span<T> destination,
                               where at) const {
  file_with(name, at).read(name, first_element, destination, at);
}

template <files_policy Files>
template <class T>
void basic_folder<Files>::read_converted(std::string_view name, std::uint64_t first_element, std::span<T> destination,
                                         where at) const {
  file_with(name, at).read_converted(name, first_element, destination, at);
}

template <files_policy Files>
void basic_folder<Files>::open(std::span<const std::string> needed, extent which, where at) {
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  if (const std::string index = index_of<Files>(path_, at); !index.empty()) return open_index(index, needed, which, at);
  if (const auto found = facts_of<Files>(path_, at); found && S_ISDIR(found->st_mode)) path_ += "/model.safetensors";
  add(path_, at);
  sort(at);
  for (const std::string& name : needed) static_cast<void>(file_with(name, at));
}

template <files_policy Files>
void basic_folder<Files>::open_index(const std::string& index, std::span<const std::string> needed, extent which,
                                     where at) {
  path_ = index;
  const weight_map map = read_index<Files>(index, at);
  std::map<std::string_view, std::string_view> file_of;
  for (const auto& [name, lies_in] : map) file_of.emplace(name, lies_in);
  std::map<std::string_view, std::size_t> number;
  const auto take = [&](std::string_view lies_in) {
    if (number.emplace(lies_in, files_.size()).second) add(folder_of(index) + "/" + std::string(lies_in), at);
  };
  if (which == all)
    for (const auto& [name, lies_in] : map) take(lies_in);
  for (const std::string& name : needed) {
    const auto found = file_of.find(name);
    if (found == file_of.end()) throw file_error(index, 0, "has no tensor " + printable(name), at);
    take(found->second);
  }
  sort(at);
  for (const auto& [name, lies_in] : map) {
    const auto opened = number.find(lies_in);
    if (opened == number.end()) continue;
    const tensor* const found = find(name);
    if (found == nullptr || file_of_[static_cast<std::size_t>(found - tensors_.data())] != opened->second)
      throw file_error(files_[opened->second].path(), 0, "has no tensor " + printable(name) + ", as " + index + " says",
                       at);
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    if (!file_of.contains(tensors_[i].name))
      throw file_error(files_[file_of_[i]].path(), 0,
                       "has tensor " + printable(tensors_[i].name) + ", which " + index + " does not have", at);
}

template <files_policy Files>
void basic_folder<Files>::add(const std::string& name, where at) {
  const auto& opened = files_.emplace_back(name, at);
  for (const tensor& each : opened.tensors()) {
    tensors_.push_back(each);
    file_of_.push_back(files_.size() - 1);
  }
}

template <files_policy Files>
void basic_folder<Files>::sort(where at) {
  by_name_ = order_by_name(tensors_);
  for (std::size_t i = 1; i < by_name_.size(); ++i) {
    const tensor &one = tensors_[by_name_[i - 1]], &other = tensors_[by_name_[i]];
    if (one.name == other.name)
      throw file_error(files_[file_of_[by_name_[i]]].path(), 0,
                       "has tensor " + printable(one.name) + ", and so has " + files_[file_of_[by_name_[i - 1]]].path(),
                       at);
  }
}

template <files_policy Files>
const basic_reader<Files>& basic_folder<Files>::file_with(std::string_view name, where at) const {
  const tensor* const found = find(name);
  if (found == nullptr) throw file_error(path(), 0, "has no tensor " + printable(std::string(name)), at);
  return files_[file_of_[static_cast<std::size_t>(found - tensors_.data())]];
}

template <files_policy Files>
basic_folder<Files>::~basic_folder() = default;

using folder = basic_folder<posix_files>;

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

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/safetensors/folder.ipp"  // IWYU pragma: export
#endif
