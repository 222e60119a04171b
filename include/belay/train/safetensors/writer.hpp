// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Writes a whole model. All tensors are declared first, so every byte's position is known, and threads or ranks may
// write their parts in any order and at the same time. Until commit() the bytes are in temporary files beside the
// targets. A crash, an error or a destroyed writer leaves files of an earlier model untouched.
//
//   belay::safetensors::writer out("models/mine", belay::safetensors::file_division(declarations, largest));
//   out.write("lm_head.weight", first_element, std::span<const float>(part));
//   out.commit();
//
// The ranks of a group write one model together, each from its own memory: see `written_by` in
// belay/train/parameter_files.hpp. No rank sends a tensor to another.
// IWYU pragma: private, include "belay/train/safetensors.hpp"
#pragma once

#include <fcntl.h>
#include <sys/random.h>
#include <sys/types.h>

#include <atomic>
#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/train/safetensors/file.hpp"
#include "belay/train/safetensors/folder.hpp"
#include "belay/train/safetensors/header.hpp"

namespace belay::inline BELAY_ABI {
namespace safetensors {

/// Those who write files together: one process, or the ranks of a group (`written_by`). Calls are collective over them,
/// but for the first three.
class writing_ranks {
 public:
  virtual ~writing_ranks() = default;

  /// Whether nothing is to be done.
  [[nodiscard]] virtual bool rehearsed() const = 0;
  /// Whether this rank, one of all, makes the files and gives them their names.
  [[nodiscard]] virtual bool makes_files() const = 0;
  /// Calls `body`. What it throws goes on, or is kept for `agree`; from then on nothing is called.
  virtual void attempt(function_ref<void()> body) = 0;
  /// Throws on all ranks what one of them has kept.
  virtual void agree(where at) = 0;
  /// Throws usage_error on all ranks where their `declared`, hashes, differ.
  virtual void expect_alike(std::uint64_t declared, where at) = 0;
  /// Gives all ranks the text of the one that makes the files.
  virtual void share(std::string& text, where at) = 0;
  /// Gives all ranks the sums over all.
  virtual void add_up(std::span<std::uint64_t> counts, where at) = 0;
};

/// One process, whose errors are thrown where they are met.
class single_process final : public writing_ranks {
 public:
  [[nodiscard]] bool rehearsed() const override { return false; }
  [[nodiscard]] bool makes_files() const override { return true; }
  void attempt(function_ref<void()> body) override { body(); }
  void agree(where) override {}
  void expect_alike(std::uint64_t, where) override {}
  void share(std::string&, where) override {}
  void add_up(std::span<std::uint64_t>, where) override {}
};

/// Of one process, whose threads may all call `write`; or of the ranks of a group, of which each makes one, writes its
/// part, and commits, by one thread. In a rehearsal it does nothing.
template <files_policy Files>
class basic_writer {
 public:
  /// Writes one file. Creates it under its temporary name (mode 0600), with its header and as long as it will be.
  /// Tensors are stored in the order given. Throws file_error, and usage_error for tensors that a reader would refuse.
  explicit basic_writer(std::string path, const std::vector<declaration>& tensors,
                        const metadata_list& about = usual_metadata(), where at = where::current());
  /// Writes the files of `division`, and their index where they are several, into `path`, a folder that is there.
  basic_writer(std::string path, const file_division& division, where at = where::current());
  /// `ranks`, not null, all of which make a writer, write them together; the folder of the one that makes the files
  /// counts, and all must see it under that name. All throw file_error, with the rank that met it, and usage_error
  /// where they declare other tensors. Collective over the ranks, as are `finish` and `commit`.
  basic_writer(std::unique_ptr<writing_ranks> ranks, std::string path, const file_division& division,
               where at = where::current());

  basic_writer(const basic_writer&) = delete;
  basic_writer& operator=(const basic_writer&) = delete;

  /// Removes the temporary files unless commit() has given them their names.
  ~basic_writer();

  /// The file, or the folder.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// How many files have tensors.
  [[nodiscard]] std::size_t files() const noexcept { return files_.size() - (several() ? 1 : 0); }

  /// Writes elements of tensor `name` from `first_element` on, in row-major order. Calls may come in any order; over
  /// all threads and ranks, every element is written exactly once. Throws usage_error for a tensor, type or range that
  /// was not declared. What the file system refuses is a file_error of one process; of ranks it is kept, and thrown by
  /// `finish` and `commit` on all; from then on nothing is written.
  template <class T>
  void write(std::string_view name, std::uint64_t first_element, std::span<const T> source,
             where at = where::current()) {
    constexpr bool has_dtype = element<T>;  // a message without the list of what is missing
    static_assert(has_dtype, "this type has no safetensors dtype (belay::dtype lists those that have)");
    if constexpr (has_dtype) write_units({name, stored_as<T>, sizeof(T), first_element}, std::as_bytes(source), at);
  }

  /// Of elements that are not const.
  template <class Elements>
    requires std::same_as<Elements, std::span<std::remove_const_t<typename Elements::element_type>>>
  void write(std::string_view name, std::uint64_t first_element, Elements source, where at = where::current()) {
    write(name, first_element, std::span<const typename Elements::element_type>(source), at);
  }

  /// Writes raw bytes of tensor `name` from `first_byte` on, whatever its type.
  void write_bytes(std::string_view name, std::uint64_t first_byte, std::span<const std::byte> source,
                   where at = where::current()) {
    write_units({name, std::nullopt, 1, first_byte}, source, at);
  }

  /// Checks that every tensor was written once, and returns when all files are on the medium under their temporary
  /// names. Throws, with no file replaced: usage_error where a tensor was not written once, file_error with the file
  /// and the bytes, of ranks also with the rank, of a write or an fsync that failed.
  void finish(where at = where::current());

  /// Finishes, and gives the files their names, each atomically and the index last: files of these names are replaced,
  /// and beside an index a model.safetensors of an earlier model, which would be read in its place, is removed. Returns
  /// when the names are on the medium. A file_error of a rename comes when files before it may have their names: a
  /// folder that must appear in one instant is written beside its place, and renamed. One process may call it again.
  void commit(where at = where::current());

 private:
  struct output {
    std::string name;  // in the folder; empty where the path is the file's
    layout content;
    std::string temporary;   // the path, while it is to be removed
    basic_file<Files> file;  // the temporary, once this process writes to it
  };
  struct tensor_location {
    std::size_t file, tensor;
    std::size_t number;  // of all tensors
  };
  struct units {
    std::string_view tensor;
    std::optional<stored_type> type;  // none for bytes
    std::size_t size;
    std::uint64_t first;
  };
  enum class progress { writing, finished, committed };

  basic_writer(std::unique_ptr<writing_ranks> ranks, std::string path)
      : ranks_(std::move(ranks)), path_(std::move(path)) {}

  [[nodiscard]] bool several() const noexcept { return files_.size() > 1; }  // the index is the last file then
  [[nodiscard]] std::string path_of(const output& of) const { return of.name.empty() ? path_ : path_ + "/" + of.name; }

  void open(where at);
  void create(const std::string& mark, where at);
  void write_units(const units& of, std::span<const std::byte> source, where at);
  void expect_complete(where at);
  void publish(where at);

  std::unique_ptr<writing_ranks> ranks_;
  std::string path_;
  std::vector<output> files_;
  std::map<std::string, tensor_location, std::less<>> tensors_;
  std::vector<std::atomic<std::uint64_t>> written_;  // bytes of each tensor so far, by this process
  progress progress_ = progress::writing;
};

// A constructor that calls another one is undone by the destructor, which removes what there is by then.
template <files_policy Files>
basic_writer<Files>::basic_writer(std::string path, const std::vector<declaration>& tensors, const metadata_list& about,
                                  where at)
    : basic_writer(std::make_unique<single_process>(), std::move(path)) {
  files_.push_back({{}, lay_out(tensors, about, at), {}, {}});
  open(at);
}

template <files_policy Files>
basic_writer<Files>::basic_writer(std::string path, const file_division& division, where at)
    : basic_writer(std::make_unique<single_process>(), std::move(path), division, at) {}

template <files_policy Files>
basic_writer<Files>::basic_writer(std::unique_ptr<writing_ranks> ranks, std::string path, const file_division& division,
                                  where at)
    : basic_writer(std::move(ranks), std::move(path)) {
  if (!ranks_->rehearsed()) {
    for (std::size_t number = 0; number < division.files(); ++number)
      files_.push_back({division.name_of(number), lay_out(division.tensors_of(number), usual_metadata(), at), {}, {}});
    if (several()) files_.push_back({file_division::index_name(), {division.index(), {}, 0}, {}, {}});
    open(at);
  }
}

template <files_policy Files>
basic_writer<Files>::~basic_writer() {
  for (const output& each : files_)
    if (!each.temporary.empty()) static_cast<void>(Files::remove(each.temporary.c_str()));
}

template <files_policy Files>
void basic_writer<Files>::open(where at) {
  content_hash hash;
  for (std::size_t number = 0; number < files_.size(); ++number) {
    const layout& content = files_[number].content;
    hash.add_text(content.prefix);
    for (std::size_t t = 0; t < content.tensors.size(); ++t)
      if (!tensors_.emplace(content.tensors[t].name, tensor_location{number, t, tensors_.size()}).second)
        throw usage_error("tensor " + printable(content.tensors[t].name) + " is declared twice", at);
  }
  written_ = std::vector<std::atomic<std::uint64_t>>(tensors_.size());
  ranks_->expect_alike(hash.value(), at);
  std::string mark;
  if (ranks_->makes_files())
    ranks_->attempt([&] {
      // 64 random bits: ranks that are late with removing an earlier attempt's files never meet these.
      std::uint64_t random = 0;
      if (::getrandom(&random, sizeof random, 0) != static_cast<ssize_t>(sizeof random))
        throw file_error(path_, 0, "no name can be drawn for a temporary file: " + reason(errno), at);
      append_hex(mark, random, 16);
      create(mark, at);
    });
  ranks_->agree(at);
  ranks_->share(path_, at);
  ranks_->share(mark, at);
  for (output& each : files_) each.temporary = path_of(each) + ".tmp-" + mark;
}

template <files_policy Files>
void basic_writer<Files>::create(const std::string& mark, where at) {
  for (output& each : files_) {
    std::string temporary = path_of(each) + ".tmp-" + mark;
    each.file = basic_file<Files>::create_new(temporary, at);
    if (!each.file.is_open()) throw file_error(temporary, 0, "is in the way", at);
    each.temporary = std::move(temporary);
    each.file.reserve(each.content.file_bytes(), at);
    each.file.write(0, std::as_bytes(std::span<const char>(each.content.prefix)), at);
  }
}

template <files_policy Files>
void basic_writer<Files>::write_units(const units& of, std::span<const std::byte> source, where at) {
  if (!ranks_->rehearsed()) {
    const auto found = tensors_.find(of.tensor);
    if (found == tensors_.end())
      throw usage_error("tensor " + printable(std::string(of.tensor)) + " was not declared", at);
    const tensor_location& here = found->second;
    output& into = files_[here.file];
    const tensor& to = into.content.tensors[here.tensor];
    if (of.type && *of.type != to.type)
      throw usage_error("tensor " + printable(to.name) + " was declared as " + std::string(safetensors::name(to.type)) +
                            " and is written as " + std::string(safetensors::name(*of.type)),
                        at);
    expect_range(to, of.type ? "elements" : "bytes", of.first, source.size() / of.size, to.bytes() / of.size, at);
    if (progress_ != progress::writing)
      throw usage_error("tensor " + printable(to.name) + " is written after finish", at);
    if (source.empty()) return;
    ranks_->attempt([&] {
      if (!into.file.is_open()) into.file = basic_file<Files>(into.temporary, O_WRONLY, at);
      into.file.write(into.content.prefix.size() + to.begin + of.first * of.size, source, at);
    });
    written_[here.number].fetch_add(source.size(), std::memory_order_relaxed);
  }
}

template <files_policy Files>
void basic_writer<Files>::finish(where at) {
  if (!ranks_->rehearsed() && progress_ != progress::finished) {
    if (progress_ == progress::committed) throw usage_error("this writer of " + path_ + " has been committed", at);
    ranks_->attempt([&] {
      for (const output& each : files_) {
        if (!each.file.is_open()) continue;
        if (ranks_->makes_files()) each.file.permit(0644, at);
        each.file.sync(at);
      }
    });
    ranks_->agree(at);
    expect_complete(at);
    progress_ = progress::finished;
  }
}

template <files_policy Files>
void basic_writer<Files>::expect_complete(where at) {
  std::vector<std::uint64_t> sums(written_.begin(), written_.end());
  if (sums.empty()) return;
  ranks_->add_up(sums, at);
  for (const auto& [name, here] : tensors_) {
    const std::uint64_t bytes = files_[here.file].content.tensors[here.tensor].bytes();
    if (sums[here.number] == bytes) continue;
    throw usage_error("tensor " + printable(name) + " has " + std::to_string(bytes) + " bytes, " +
                          std::to_string(sums[here.number]) + " were written",
                      at);
  }
}

template <files_policy Files>
void basic_writer<Files>::commit(where at) {
  finish(at);
  if (!ranks_->rehearsed()) {
    // From here on a rank that fails alone must not take away what another one is giving its name.
    if (ranks_->makes_files())
      ranks_->attempt([&] { publish(at); });
    else
      for (output& each : files_) each.temporary.clear();
    for (output& each : files_) each.file.close();
    ranks_->agree(at);
    progress_ = progress::committed;
  }
}

template <files_policy Files>
void basic_writer<Files>::publish(where at) {
  const std::string in = files_[0].name.empty() ? folder_of(path_) : path_;
  for (output& each : files_) {
    if (each.temporary.empty()) continue;
    if (several() && &each == &files_.back()) sync_folder<Files>(in, at);
    if (Files::rename(each.temporary.c_str(), path_of(each).c_str()) != 0)
      throw file_error(path_of(each), 0, "cannot be replaced: " + reason(errno), at);
    each.temporary.clear();
  }
  const std::string alone = in + "/model.safetensors";
  if (several() && Files::remove(alone.c_str()) != 0 && errno != ENOENT)
    throw file_error(alone, 0, "cannot be removed: " + reason(errno), at);
  sync_folder<Files>(in, at);
}

using writer = basic_writer<posix_files>;

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI
