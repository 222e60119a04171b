// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Writes a model from the memory of all ranks: rank 0 makes the files, and every rank writes its own ranges into them.
// No rank sends a tensor to another. A file of an earlier model stays as it is until all bytes of the new one are on
// the medium.
//
//   safetensors::collective_writer out(mesh.control(), "models/mine", safetensors::file_division(declarations));
//   out.write("lm_head.weight", first_element, std::span<const float>(part));   // what no other rank writes
//   out.commit();
// IWYU pragma: private, include "belay/train/parameter_files.hpp"
#pragma once

#include <fcntl.h>
#include <sys/random.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/comm/collective.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/rank_comparison.hpp"
#include "belay/train/safetensors/file.hpp"
#include "belay/train/safetensors/file_agreement.hpp"
#include "belay/train/safetensors/folder.hpp"
#include "belay/train/safetensors/header.hpp"

namespace belay::inline BELAY_ABI {
namespace safetensors {

/// Removes files that did not get their names.
template <files_policy Files>
class unfinished_files {
 public:
  unfinished_files() = default;
  unfinished_files(const unfinished_files&) = delete;
  unfinished_files& operator=(const unfinished_files&) = delete;
  ~unfinished_files() {
    for (const std::string& path : paths_) static_cast<void>(Files::remove(path.c_str()));
  }

  void add(std::string path) { paths_.push_back(std::move(path)); }
  /// They have their names, or another rank removes them.
  void release() noexcept { paths_.clear(); }

 private:
  std::vector<std::string> paths_;
};

/// Every rank of a group makes one, writes, and commits. In a rehearsal it does nothing. An instance is used by one
/// thread.
template <communicator Group, files_policy Files = posix_files>
class basic_collective_writer {
 public:
  /// Rank 0 makes the files of `division` beside their final names in `path`, a folder that is there: with their
  /// headers, and as long as they will be. The `path` of rank 0 counts; all must see it under that name. Throws
  /// file_error on all ranks with the rank that met it, usage_error where ranks declare other tensors. Collective over
  /// `group`, of host memory, as is `commit`.
  basic_collective_writer(const Group& group, std::string path, const file_division& division,
                          where at = where::current());

  basic_collective_writer(const basic_collective_writer&) = delete;
  basic_collective_writer& operator=(const basic_collective_writer&) = delete;

  [[nodiscard]] std::size_t files() const noexcept { return files_.size(); }

  /// Writes elements of tensor `name` from `first_element` on, in row-major order, with pwrite into the file. Over all
  /// ranks, every element is written exactly once. What the file system refuses is kept, and thrown by `commit` on all
  /// ranks; from then on nothing is written. Throws usage_error for a tensor, type or range that was not declared.
  template <class T>
  void write(std::string_view name, std::uint64_t first_element, std::span<const T> source,
             where at = where::current());

  /// Returns when every file is on the medium under its name, the index last. Throws on all ranks, with no file
  /// replaced: file_error with the rank, the file and the bytes of a write or an fsync that failed; usage_error where
  /// the ranks together did not write each tensor once. A file_error of a rename comes when files before it may have
  /// their names: a folder that must appear in one instant is written beside its place, and renamed.
  void commit(where at = where::current());

 private:
  struct output {
    std::string name;
    layout content;
    basic_file<Files> file;  // the temporary, once this rank writes to it
  };
  struct tensor_location {
    std::size_t file, tensor;
    std::size_t number;  // of all tensors
  };

  void lay_out_all(const file_division& division, where at);

  [[nodiscard]] std::string temporary(const output& of) const;

  // 64 random bits: ranks that are late with removing an earlier attempt's files never meet these.
  void create(where at);

  void expect_complete(where at);

  void publish(where at);

  [[nodiscard]] const tensor_location& place_of(std::string_view name, where at) const;

  Group group_;
  std::string folder_;
  std::string mark_;   // of the temporary files' names
  std::string index_;  // empty where there is one file
  unfinished_files<Files> unfinished_;
  std::vector<output> files_;
  std::map<std::string, tensor_location, std::less<>> places_;
  std::vector<std::uint64_t> written_;  // bytes of each tensor, by this rank
  file_agreement problems_;
  bool committed_ = false;
};

template <communicator Group, files_policy Files>
basic_collective_writer<Group, Files>::basic_collective_writer(const Group& group, std::string path,
                                                               const file_division& division, where at)
    : group_(group), folder_(std::move(path)) {
  if (!is_rehearsed(group_)) {
    lay_out_all(division, at);
    if (group_.rank() == 0) problems_.attempt([&] { create(at); });
    problems_.agree(group_, at);
    folder_ = broadcast_text(group_, std::move(folder_), 0, at);
    mark_ = broadcast_text(group_, std::move(mark_), 0, at);
    if (group_.rank() != 0)
      for (const output& each : files_) unfinished_.add(temporary(each));
  }
}

template <communicator Group, files_policy Files>
template <class T>
void basic_collective_writer<Group, Files>::write(std::string_view name, std::uint64_t first_element,
                                                  std::span<const T> source, where at) {
  constexpr bool has_dtype = element<T>;  // a message without the list of what is missing
  static_assert(has_dtype, "this type has no safetensors dtype (belay::dtype lists those that have)");
  if constexpr (has_dtype)
    if (!is_rehearsed(group_)) {
      const tensor_location& to = place_of(name, at);
      const tensor& declared = files_[to.file].content.tensors[to.tensor];
      if (declared.type != stored_as<T>)
        throw usage_error("tensor " + printable(declared.name) + " was declared as " +
                              std::string(safetensors::name(declared.type)) + " and is written as " +
                              std::string(safetensors::name(stored_as<T>)),
                          at);
      const std::uint64_t elements = declared.bytes() / sizeof(T);
      if (first_element > elements || source.size() > elements - first_element)
        throw usage_error("elements " + std::to_string(first_element) + " to " +
                              std::to_string(first_element + source.size()) + " of tensor " + printable(declared.name) +
                              ", which has " + std::to_string(elements),
                          at);
      if (committed_) throw usage_error("tensor " + printable(declared.name) + " is written after the commit", at);
      if (source.empty()) return;
      problems_.attempt([&] {
        output& into = files_[to.file];
        if (!into.file.is_open()) into.file = basic_file<Files>(temporary(into), O_WRONLY, at);
        into.file.write(into.content.prefix.size() + declared.begin + first_element * sizeof(T), std::as_bytes(source),
                        at);
      });
      written_[to.number] += source.size_bytes();
    }
}

template <communicator Group, files_policy Files>
void basic_collective_writer<Group, Files>::commit(where at) {
  if (!is_rehearsed(group_)) {
    if (std::exchange(committed_, true)) throw usage_error("this writer has been committed", at);
    problems_.attempt([&] {
      for (const output& each : files_)
        if (each.file.is_open()) each.file.sync(at);
    });
    problems_.agree(group_, at);
    expect_complete(at);
    // From here on a rank that fails alone must not take away what rank 0 is giving its name.
    if (group_.rank() == 0)
      problems_.attempt([&] { publish(at); });
    else
      unfinished_.release();
    for (output& each : files_) each.file.close();
    problems_.agree(group_, at);
  }
}

template <communicator Group, files_policy Files>
void basic_collective_writer<Group, Files>::lay_out_all(const file_division& division, where at) {
  content_hash hash;
  for (std::size_t number = 0; number < division.files(); ++number) {
    output each{division.name_of(number), lay_out(division.tensors_of(number), usual_metadata(), at), {}};
    hash.add_text(each.content.prefix);
    for (std::size_t t = 0; t < each.content.tensors.size(); ++t) {
      const tensor_location here{number, t, places_.size()};
      if (!places_.emplace(each.content.tensors[t].name, here).second)
        throw usage_error("tensor " + printable(each.content.tensors[t].name) + " is declared twice", at);
    }
    files_.push_back(std::move(each));
  }
  if (division.files() > 1) index_ = division.index();
  written_.resize(places_.size());
  rank_comparison compared;
  const std::uint64_t own[] = {hash.value()};
  if (compared.differ(group_, own, at))
    throw usage_error("ranks that write a model together declare other tensors: " + compared.ranks(group_), at);
}

template <communicator Group, files_policy Files>
std::string basic_collective_writer<Group, Files>::temporary(const output& of) const {
  return folder_ + "/" + of.name + ".tmp-" + mark_;
}

template <communicator Group, files_policy Files>
void basic_collective_writer<Group, Files>::create(where at) {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != static_cast<ssize_t>(sizeof random))
    throw file_error(folder_, 0, "no name can be drawn for a temporary file: " + reason(errno), at);
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(random));
  mark_ = text;
  for (output& each : files_) {
    each.file = basic_file<Files>::create_new(temporary(each), at);
    if (!each.file.is_open()) throw file_error(temporary(each), 0, "is in the way", at);
    unfinished_.add(temporary(each));
    each.file.reserve(each.content.file_bytes(), at);
    each.file.write(0, std::as_bytes(std::span<const char>(each.content.prefix)), at);
  }
}

template <communicator Group, files_policy Files>
void basic_collective_writer<Group, Files>::expect_complete(where at) {
  if (written_.empty()) return;
  group_.all_reduce(std::span<std::uint64_t>(written_), sum, at);
  for (const auto& [name, here] : places_) {
    const std::uint64_t bytes = files_[here.file].content.tensors[here.tensor].bytes();
    if (written_[here.number] == bytes) continue;
    throw usage_error("tensor " + printable(name) + " has " + std::to_string(bytes) + " bytes, the ranks wrote " +
                          std::to_string(written_[here.number]),
                      at);
  }
}

template <communicator Group, files_policy Files>
void basic_collective_writer<Group, Files>::publish(where at) {
  for (const output& each : files_) each.file.permit(0644, at);
  for (const output& each : files_) {
    const std::string name = folder_ + "/" + each.name;
    if (Files::rename(temporary(each).c_str(), name.c_str()) != 0)
      throw file_error(name, 0, "cannot be replaced: " + reason(errno), at);
  }
  unfinished_.release();
  sync_folder<Files>(folder_, at);
  if (!index_.empty()) publish_index<Files>(folder_, index_, mark_, at);
}

template <communicator Group, files_policy Files>
auto basic_collective_writer<Group, Files>::place_of(std::string_view name, where at) const -> const tensor_location& {
  const auto found = places_.find(name);
  if (found == places_.end()) throw usage_error("tensor " + printable(std::string(name)) + " was not declared", at);
  return found->second;
}

template <communicator Group>
class collective_writer : public basic_collective_writer<Group> {
 public:
  using basic_collective_writer<Group>::basic_collective_writer;
};
template <communicator Group>
collective_writer(const Group&, std::string, const file_division&) -> collective_writer<Group>;
template <communicator Group>
collective_writer(const Group&, std::string, const file_division&, where) -> collective_writer<Group>;

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI
