// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Writes one rank's files of a checkpoint beside its training, on threads of its own, a chunk at a time: each thread
// gathers a chunk in aligned memory, sums it and writes it around the page cache while others do the same. Before the
// state changes, `before_update` copies the last chunks that are not gathered into a ring of fixed size, and waits for
// those that do not fit.
// IWYU pragma: private, include "belay/train/checkpoint.hpp"
#pragma once

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stored_bytes.hpp"
#include "belay/train/checkpoint/manifest.hpp"
#include "belay/train/safetensors/file.hpp"

namespace belay::inline BELAY_ABI {

/// A file that is to be written: its segments, one after another, which stay as they are until the next
/// `before_update` has returned.
struct file_to_write {
  std::string path;
  std::vector<stored_bytes> segments;
  std::uint64_t bytes = 0;               // of all segments
  std::vector<std::uint32_t> checksums;  // of its chunks, once written
};

/// The files that a rank writes of a checkpoint, in chunks of one size: where the bytes of each come from.
class chunked_files {
 public:
  chunked_files() = default;
  explicit chunked_files(std::vector<file_to_write> files);

  [[nodiscard]] const std::vector<file_to_write>& all() const noexcept { return files_; }
  /// Of all files: chunk `number` of these is one of a file.
  [[nodiscard]] std::size_t chunks() const noexcept { return chunks_; }

  struct file_chunk {
    std::size_t file = 0, chunk = 0;
    std::uint64_t begin = 0;  // byte of the file
    std::size_t bytes = 0;
  };
  [[nodiscard]] file_chunk place_of(std::size_t number) const noexcept;
  /// Copies the chunk at `of` to `to`. Throws tier_file_error where it lies in a tier's file that cannot be read.
  void gather(const file_chunk& of, std::byte* to, file_staging& staging, where at) const;
  void set_checksum(const file_chunk& of, std::uint32_t value) noexcept { files_[of.file].checksums[of.chunk] = value; }

 private:
  std::vector<file_to_write> files_;
  std::vector<std::vector<std::uint64_t>> ends_;  // of each file: where each segment ends in it
  std::size_t chunks_ = 0;
};

/// The cost of checkpoints so far, on this rank.
struct checkpoint_costs {
  std::uint64_t written_bytes = 0;
  std::uint64_t copied_bytes = 0;  // before updates that came earlier than the end of a write
  double waited_seconds = 0;       // of updates, and of what ends a checkpoint
};

template <folders_policy Files = posix_files>
class checkpoint_writer {
 public:
  /// Chunks that are on their way to the medium at once, each from a thread.
  static constexpr std::size_t writers = 4;

  /// Bytes that it needs where an update can copy `ring_bytes`, rounded up to whole chunks, and what it needs beside
  /// that to read tiers' files.
  [[nodiscard]] static constexpr std::size_t memory_bytes(std::size_t ring_bytes) noexcept {
    return static_cast<std::size_t>(writers + checkpoint_chunks(ring_bytes)) * chunk_bytes + largest_alignment;
  }
  static constexpr std::size_t staging_bytes = (writers + 1) * file_staging::bytes;

  /// `memory`: as `memory_bytes` says. `staging`: `staging_bytes`, where segments lie in files.
  explicit checkpoint_writer(std::span<std::byte> memory, std::span<std::byte> staging = {});
  checkpoint_writer(const checkpoint_writer&) = delete;
  checkpoint_writer& operator=(const checkpoint_writer&) = delete;
  /// Gives up what is not written: its threads end after the chunks that they are at.
  ~checkpoint_writer() { end(); }

  /// Begins to write `files` into `folder`, which is made, and to bring all to the medium. Nothing else may be under
  /// way.
  void start(std::vector<file_to_write> files, std::string folder, where at);
  /// Queues a job of rank 0 for when all files are on their media; its file_error is kept for `take_late_problem`.
  void then(std::function<void()> job);

  /// Whether everything that was started is on the medium, or has failed.
  [[nodiscard]] bool done() const;
  /// Why the files could not be written.
  [[nodiscard]] std::optional<file_error> problem() const;
  /// Why a job of `then` failed; once.
  [[nodiscard]] std::optional<file_error> take_late_problem();
  /// The files, with their checksums, once they are done.
  [[nodiscard]] const std::vector<file_to_write>& files() const noexcept { return files_.all(); }
  [[nodiscard]] checkpoint_costs costs() const {
    const std::lock_guard held(mutex_);
    return costs_;
  }

  /// Returns when nothing that is still to be written lies where the segments are. A tier's file that cannot be read is
  /// a `problem` of what is written, and no error here.
  void before_update();
  /// Returns when everything that was started is done.
  void wait_done();

 private:
  static constexpr std::size_t chunk_bytes = checkpoint_chunk;
  static constexpr std::size_t largest_alignment = file_staging::largest_alignment;
  enum class stage : std::uint8_t { idle, writing };

  // Whether all is in memory of its own.
  [[nodiscard]] bool gathered() const noexcept { return taken_ >= copied_from_ && gathering_ == 0; }
  void wait(std::unique_lock<std::mutex>& held, function_ref<bool()> until);
  // The last chunks have the ring, so that a chunk always has the same slot.
  [[nodiscard]] std::byte* slot_of(std::size_t number) const noexcept {
    return buffers_ + (writers + number % ring_chunks_) * chunk_bytes;
  }
  void end() noexcept;

  // --- on the first thread

  void work();
  [[nodiscard]] std::optional<file_error> problem_of(function_ref<void()> body) const;

  void write_all();
  // What a run that was killed has left under that name is replaced.
  [[nodiscard]] safetensors::basic_file<Files> make(const std::string& path) const;
  [[nodiscard]] bool write_chunks(const safetensors::basic_file<Files>& out, std::size_t chunks);

  // --- on all threads

  void help(std::size_t writer);
  // Chunks of the file, until there is none left.
  void write_from(std::size_t writer);
  [[nodiscard]] bool write_next(std::size_t writer);

  std::byte* buffers_ = nullptr;  // a chunk for each thread, and then the ring
  std::size_t ring_chunks_ = 0;
  std::array<file_staging, writers + 1> staging_;  // of the threads, and of updates
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  stage stage_ = stage::idle;
  bool ends_ = false;
  bool in_job_ = false;
  chunked_files files_;
  std::string folder_;
  where at_;
  std::size_t taken_ = 0;        // chunks that threads have begun, in order
  std::size_t gathering_ = 0;    // threads that copy such a chunk
  std::size_t copied_from_ = 0;  // chunks from here on are in the ring
  std::optional<file_error> problem_, late_problem_;
  std::optional<file_error> failed_;  // the first reason why not all can be written
  std::vector<std::function<void()>> jobs_;
  checkpoint_costs costs_;
  // The file that is being written.
  const safetensors::basic_file<Files>* out_ = nullptr;
  std::size_t file_end_ = 0;   // the first chunk of the next
  std::size_t alignment_ = 1;  // that its writes need
  std::size_t helping_ = 0;    // threads beside the first that are at it
  std::uint64_t rest_begin_ = 0;
  std::vector<std::byte> rest_;       // what is less than a block at its end
  std::vector<std::thread> threads_;  // the last: they use all the others
};

template <folders_policy Files>
checkpoint_writer<Files>::checkpoint_writer(std::span<std::byte> memory, std::span<std::byte> staging) {
  void* first = memory.data();
  std::size_t room = memory.size();
  buffers_ = static_cast<std::byte*>(std::align(largest_alignment, writers * chunk_bytes, first, room));
  ring_chunks_ = room / chunk_bytes - writers;
  for (std::size_t i = 0; i <= writers && !staging.empty(); ++i)
    staging_[i] = file_staging(staging.subspan(i * file_staging::bytes, file_staging::bytes));
  try {
    threads_.reserve(writers);
    threads_.emplace_back([this] { work(); });
    for (std::size_t i = 1; i < writers; ++i) threads_.emplace_back([this, i] { help(i); });
  } catch (...) {
    end();
    throw;
  }
}

template <folders_policy Files>
void checkpoint_writer<Files>::start(std::vector<file_to_write> files, std::string folder, where at) {
  const std::lock_guard held(mutex_);
  files_ = chunked_files(std::move(files));
  folder_ = std::move(folder);
  at_ = at;
  taken_ = 0;
  copied_from_ = files_.chunks();
  problem_.reset();
  failed_.reset();
  stage_ = stage::writing;
  changed_.notify_all();
}

template <folders_policy Files>
void checkpoint_writer<Files>::then(std::function<void()> job) {
  const std::lock_guard held(mutex_);
  jobs_.push_back(std::move(job));
  changed_.notify_all();
}

template <folders_policy Files>
bool checkpoint_writer<Files>::done() const {
  const std::lock_guard held(mutex_);
  return stage_ == stage::idle;
}

template <folders_policy Files>
std::optional<file_error> checkpoint_writer<Files>::problem() const {
  const std::lock_guard held(mutex_);
  return problem_;
}

template <folders_policy Files>
std::optional<file_error> checkpoint_writer<Files>::take_late_problem() {
  const std::lock_guard held(mutex_);
  return std::exchange(late_problem_, std::nullopt);
}

template <folders_policy Files>
void checkpoint_writer<Files>::before_update() {
  std::unique_lock held(mutex_);
  if (stage_ != stage::writing || gathered()) return;
  const std::size_t from = greater_of(taken_, copied_from_ - lesser_of(ring_chunks_, copied_from_));
  const std::size_t to = copied_from_;
  held.unlock();  // chunks that are taken meanwhile are still as they were
  std::uint64_t copied = 0;
  std::optional<file_error> wrong = problem_of([&] {
    for (std::size_t chunk = from; chunk < to; ++chunk) {
      const chunked_files::file_chunk of = files_.place_of(chunk);
      files_.gather(of, slot_of(chunk), staging_[writers], at_);
      copied += of.bytes;
    }
  });
  held.lock();
  if (wrong)
    failed_ = std::move(wrong);
  else
    copied_from_ = greater_of(from, lesser_of(taken_, to));
  costs_.copied_bytes += copied;
  wait(held, [&] { return stage_ != stage::writing || (!failed_ && gathered()); });
}

template <folders_policy Files>
void checkpoint_writer<Files>::wait_done() {
  std::unique_lock held(mutex_);
  wait(held, [&] { return stage_ == stage::idle && jobs_.empty() && !in_job_; });
}

template <folders_policy Files>
void checkpoint_writer<Files>::wait(std::unique_lock<std::mutex>& held, function_ref<bool()> until) {
  if (until()) return;
  const auto begin = std::chrono::steady_clock::now();
  changed_.wait(held, until);
  costs_.waited_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

template <folders_policy Files>
void checkpoint_writer<Files>::end() noexcept {
  {
    const std::lock_guard held(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& each : threads_) each.join();
}

template <folders_policy Files>
void checkpoint_writer<Files>::work() {
  std::unique_lock held(mutex_);
  while (true) {
    changed_.wait(held, [&] { return ends_ || stage_ == stage::writing || !jobs_.empty(); });
    if (ends_) return;
    if (!jobs_.empty()) {
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.erase(jobs_.begin());
      in_job_ = true;
      held.unlock();
      std::optional<file_error> wrong = problem_of(job);
      held.lock();
      in_job_ = false;
      if (wrong) late_problem_ = std::move(wrong);
    } else {
      held.unlock();
      std::optional<file_error> wrong = problem_of([&] { write_all(); });
      held.lock();
      problem_ = std::move(wrong);
      stage_ = stage::idle;
    }
    changed_.notify_all();
  }
}

template <folders_policy Files>
std::optional<file_error> checkpoint_writer<Files>::problem_of(function_ref<void()> body) const {
  try {
    body();
  } catch (const file_error& wrong) {
    return wrong;
  } catch (const std::exception& wrong) {  // no memory for a path
    return file_error(folder_, 0, message_of(wrong), at_);
  }
  return std::nullopt;
}

template <folders_policy Files>
void checkpoint_writer<Files>::write_all() {
  if (Files::make_folder(folder_.c_str(), 0755) != 0 && errno != EEXIST)
    throw file_error(folder_, 0, "cannot be made: " + safetensors::reason(errno), at_);
  struct stat found = {};
  if (Files::ask_link(folder_.c_str(), found) != 0)
    throw file_error(folder_, 0, "cannot be examined: " + safetensors::reason(errno), at_);
  if (!S_ISDIR(found.st_mode)) throw file_error(folder_, 0, "is in the way, and is no folder", at_);
  for (const file_to_write& each : files_.all()) {
    safetensors::basic_file<Files> out = make(each.path);
    out.reserve(each.bytes, at_);
    if (!write_chunks(out, each.checksums.size())) return;  // it was given up
    out.permit(0644, at_);
    out.sync(at_);
  }
  safetensors::sync_folder<Files>(folder_, at_);
}

template <folders_policy Files>
safetensors::basic_file<Files> checkpoint_writer<Files>::make(const std::string& path) const {
  auto out = safetensors::basic_file<Files>::create_new(path, at_);
  if (out.is_open()) return out;
  static_cast<void>(Files::remove(path.c_str()));
  out = safetensors::basic_file<Files>::create_new(path, at_);
  if (!out.is_open()) throw file_error(path, 0, "is in the way", at_);
  return out;
}

template <folders_policy Files>
bool checkpoint_writer<Files>::write_chunks(const safetensors::basic_file<Files>& out, std::size_t chunks) {
  const std::size_t alignment = out.go_direct();
  const bool direct = alignment != 0 && alignment <= largest_alignment;
  if (!direct) out.go_buffered(at_);
  std::unique_lock held(mutex_);
  alignment_ = direct ? alignment : 1;
  rest_.clear();
  out_ = &out;
  file_end_ = taken_ + chunks;
  held.unlock();
  changed_.notify_all();
  write_from(0);
  held.lock();
  changed_.wait(held, [&] { return helping_ == 0; });
  out_ = nullptr;
  if (failed_) throw file_error(*failed_);
  if (ends_) return false;
  held.unlock();
  if (!rest_.empty()) {  // less than a block
    out.go_buffered(at_);
    out.write(rest_begin_, rest_, at_);
  }
  return true;
}

template <folders_policy Files>
void checkpoint_writer<Files>::help(std::size_t writer) {
  std::unique_lock held(mutex_);
  while (true) {
    changed_.wait(held, [&] { return ends_ || (out_ != nullptr && !failed_ && taken_ < file_end_); });
    if (ends_) return;
    ++helping_;
    held.unlock();
    write_from(writer);
    held.lock();
    --helping_;
    changed_.notify_all();
  }
}

template <folders_policy Files>
void checkpoint_writer<Files>::write_from(std::size_t writer) {
  std::optional<file_error> wrong = problem_of([&] {
    while (write_next(writer)) {
    }
  });
  const std::lock_guard held(mutex_);
  if (wrong && !failed_) failed_ = std::move(wrong);
}

template <folders_policy Files>
bool checkpoint_writer<Files>::write_next(std::size_t writer) {
  std::unique_lock held(mutex_);
  if (ends_ || failed_ || taken_ == file_end_) return false;
  const std::size_t number = taken_++;
  const bool copied = number >= copied_from_;
  const chunked_files::file_chunk of = files_.place_of(number);
  std::byte* const memory = copied ? slot_of(number) : buffers_ + writer * chunk_bytes;
  if (!copied) {
    ++gathering_;
    held.unlock();
    std::optional<file_error> wrong = problem_of([&] { files_.gather(of, memory, staging_[writer], at_); });
    held.lock();
    --gathering_;
    changed_.notify_all();  // an update may wait for it
    if (wrong) {
      failed_ = std::move(wrong);
      return false;
    }
  }
  held.unlock();
  const std::span<const std::byte> all(memory, of.bytes);
  files_.set_checksum(of, crc32c_of(all));
  const std::size_t whole = all.size() / alignment_ * alignment_;  // blocks
  if (whole < all.size()) {
    rest_begin_ = of.begin + whole;
    rest_.assign(all.begin() + static_cast<std::ptrdiff_t>(whole), all.end());
  }
  if (whole > 0) out_->write(of.begin, all.first(whole), at_);
  if (alignment_ == 1) out_->start_sync(of.begin, of.bytes);
  held.lock();
  costs_.written_bytes += of.bytes;
  return true;
}

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/checkpoint/checkpoint_writer.ipp"  // IWYU pragma: export
#endif
