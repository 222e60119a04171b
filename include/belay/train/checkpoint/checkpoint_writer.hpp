// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Writes one rank's files of a checkpoint beside its training, on a thread of its own: from where the state lies, a
// chunk at a time, without a copy of what is in memory. What is in a tier's file is read through aligned memory. Before
// the state changes, `before_update` copies the last chunks that are not written into a ring of fixed size, and waits
// for those that do not fit.
// IWYU pragma: private, include "belay/train/checkpoint.hpp"
#pragma once

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/crc32c.hpp"
#include "belay/core/error.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stored_bytes.hpp"
#include "belay/train/checkpoint/manifest.hpp"
#include "belay/train/safetensors/file.hpp"

namespace belay::inline BELAY_ABI {

/// What a checkpoint has cost so far.
struct checkpoint_costs {
  std::uint64_t written_bytes = 0;
  std::uint64_t copied_bytes = 0;  // before updates that came earlier than the end of a write
  double waited_seconds = 0;       // of updates, and of what ends a checkpoint
};

/// A file that is to be written: its segments, one after another, which stay as they are until the next
/// `before_update` has returned.
struct file_to_write {
  std::string path;
  std::vector<stored_bytes> segments;
  std::uint64_t bytes = 0;               // of all segments
  std::vector<std::uint32_t> checksums;  // of its chunks, once written
};

template <folders_policy Files = posix_files>
class checkpoint_writer {
 public:
  /// `ring`: memory for so many whole chunks, of which the first is for gathering small segments. At least one.
  /// `staging`: where segments lie in files, twice what `file_staging` needs.
  explicit checkpoint_writer(std::span<std::byte> ring, std::span<std::byte> staging = {})
      : gathered_(ring.first(chunk_bytes)),
        ring_(ring.subspan(chunk_bytes)),
        staging_(staging.first(staging.size() / 2)),
        staging_of_updates_(staging.subspan(staging.size() / 2)),
        thread_([this] { work(); }) {}
  checkpoint_writer(const checkpoint_writer&) = delete;
  checkpoint_writer& operator=(const checkpoint_writer&) = delete;
  /// Gives up what is not written: its thread ends after the chunk that it is at.
  ~checkpoint_writer() {
    {
      const std::lock_guard held(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  /// Begins to write `files` into `folder`, which is made, and to bring all to the medium. Nothing else may be under
  /// way.
  void start(std::vector<file_to_write> files, std::string folder, where at) {
    const std::lock_guard held(mutex_);
    files_ = std::move(files);
    folder_ = std::move(folder);
    at_ = at;
    ends_of_.clear();
    copied_from_ = 0;
    for (file_to_write& each : files_) {
      each.checksums.assign(static_cast<std::size_t>(checkpoint_chunks(each.bytes)), 0);
      copied_from_ += each.checksums.size();
      std::uint64_t end = 0;
      std::vector<std::uint64_t>& ends = ends_of_.emplace_back();
      for (const stored_bytes& segment : each.segments) ends.push_back(end += segment.size());
    }
    taken_ = written_ = 0;
    problem_.reset();
    unread_.reset();
    stage_ = stage::writing;
    changed_.notify_all();
  }
  /// What rank 0 does once all files are on their media; its file_error is kept as `late_problem`.
  void then(std::function<void()> job) {
    const std::lock_guard held(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_all();
  }

  /// Whether everything that was started is on the medium, or has failed.
  [[nodiscard]] bool done() const {
    const std::lock_guard held(mutex_);
    return stage_ == stage::idle;
  }
  /// Why the files could not be written.
  [[nodiscard]] std::optional<file_error> problem() const {
    const std::lock_guard held(mutex_);
    return problem_;
  }
  /// Why a job of `then` failed; once.
  [[nodiscard]] std::optional<file_error> take_late_problem() {
    const std::lock_guard held(mutex_);
    return std::exchange(late_problem_, std::nullopt);
  }
  /// The files, with their checksums, once they are done.
  [[nodiscard]] const std::vector<file_to_write>& files() const noexcept { return files_; }
  [[nodiscard]] checkpoint_costs costs() const {
    const std::lock_guard held(mutex_);
    return costs_;
  }

  /// Returns when nothing that is still to be written lies where the segments are. A tier's file that cannot be read is
  /// a `problem` of what is written, and no error here.
  void before_update() {
    std::unique_lock held(mutex_);
    if (stage_ != stage::writing || written_ >= copied_from_) return;
    const std::size_t room = ring_.size() / chunk_bytes;
    const std::size_t from = std::max(taken_, copied_from_ - std::min(room, copied_from_));
    const std::size_t to = copied_from_;
    held.unlock();  // chunks that are taken meanwhile are still as they were
    std::uint64_t copied = 0;
    std::optional<file_error> wrong = problem_of([&] {
      for (std::size_t chunk = from; chunk < to; ++chunk) copied += copy(chunk);
    });
    held.lock();
    if (wrong)
      unread_ = std::move(wrong);  // the thread ends with it at its next chunk
    else
      copied_from_ = std::max(from, std::min(taken_, to));
    costs_.copied_bytes += copied;
    wait(held, [&] { return stage_ != stage::writing || (!unread_ && written_ >= copied_from_); });
  }
  /// Returns when everything that was started is done.
  void wait_done() {
    std::unique_lock held(mutex_);
    wait(held, [&] { return stage_ == stage::idle && jobs_.empty() && !in_job_; });
  }

 private:
  static constexpr std::size_t chunk_bytes = checkpoint_chunk;
  static constexpr std::size_t gathered_below = std::size_t{64} << 10U;  // bytes of a segment
  enum class stage : std::uint8_t { idle, writing };

  template <class Until>
  void wait(std::unique_lock<std::mutex>& held, Until&& until) {
    if (until()) return;
    const auto begin = std::chrono::steady_clock::now();
    changed_.wait(held, until);
    costs_.waited_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  // Where chunk `number` of all files lies.
  struct place {
    file_to_write* file;
    std::size_t file_number, chunk;
    std::uint64_t begin, bytes;
  };
  [[nodiscard]] place place_of(std::size_t number) {
    std::size_t f = 0;
    for (; number >= files_[f].checksums.size(); ++f) number -= files_[f].checksums.size();
    const std::uint64_t begin = number * checkpoint_chunk;
    return {&files_[f], f, number, begin, std::min(checkpoint_chunk, files_[f].bytes - begin)};
  }
  // Calls `visit(stored_bytes)` for the segments of a chunk, in order.
  template <class Visit>
  void each_segment(const place& of, Visit&& visit) const {
    const std::vector<std::uint64_t>& ends = ends_of_[of.file_number];
    const std::vector<stored_bytes>& segments = of.file->segments;
    const std::uint64_t end = of.begin + of.bytes;
    auto i = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), of.begin) - ends.begin());
    for (std::uint64_t next = of.begin; next < end; next = ends[i++]) {
      const std::uint64_t begin = ends[i] - segments[i].size(), last = std::min(ends[i], end);
      if (next < last)
        visit(segments[i].part(static_cast<std::size_t>(next - begin), static_cast<std::size_t>(last - next)));
    }
  }
  // The last chunks have the ring, so that a chunk always has the same slot.
  [[nodiscard]] std::byte* slot_of(std::size_t number) const noexcept {
    return ring_.data() + number % (ring_.size() / chunk_bytes) * chunk_bytes;
  }
  std::uint64_t copy(std::size_t number) {
    const place of = place_of(number);
    gather(of, slot_of(number), staging_of_updates_);
    return of.bytes;
  }
  void gather(const place& of, std::byte* to, file_staging& staging) const {
    each_segment(of, [&](const stored_bytes& part) {
      staging.copy(part, to, at_);
      to += part.size();
    });
  }

  // --- on the thread

  void work() {
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
  template <class Body>
  [[nodiscard]] std::optional<file_error> problem_of(Body&& body) const {
    try {
      body();
    } catch (const file_error& wrong) {
      return wrong;
    } catch (const std::exception& wrong) {  // no memory for a path
      return file_error(folder_, 0, message_of(wrong), at_);
    }
    return std::nullopt;
  }

  void write_all() {
    if (Files::make_folder(folder_.c_str(), 0755) != 0 && errno != EEXIST)
      throw file_error(folder_, 0, "cannot be made: " + safetensors::reason(errno), at_);
    for (file_to_write& each : files_) {
      safetensors::basic_file<Files> out = make(each.path);
      out.reserve(each.bytes, at_);
      for (std::size_t chunk = 0; chunk < each.checksums.size(); ++chunk)
        if (!write_next(out)) return;  // it was given up
      out.permit(0644, at_);
      out.sync(at_);
    }
    safetensors::sync_folder<Files>(folder_, at_);
  }
  // What a run that was killed has left under that name is replaced.
  [[nodiscard]] safetensors::basic_file<Files> make(const std::string& path) const {
    auto out = safetensors::basic_file<Files>::create_new(path, at_);
    if (out.is_open()) return out;
    static_cast<void>(Files::remove(path.c_str()));
    out = safetensors::basic_file<Files>::create_new(path, at_);
    if (!out.is_open()) throw file_error(path, 0, "is in the way", at_);
    return out;
  }
  [[nodiscard]] bool write_next(const safetensors::basic_file<Files>& out) {
    std::size_t number = 0;
    bool copied = false;
    {
      const std::lock_guard held(mutex_);
      if (ends_) return false;
      if (unread_) throw file_error(*unread_);
      number = taken_++;
      copied = number >= copied_from_;
    }
    const place of = place_of(number);
    crc32c checksum;
    if (!copied && lies_in_file(of)) gather(of, gathered_.data(), staging_);
    if (copied || lies_in_file(of)) {
      const std::span<const std::byte> all(copied ? slot_of(number) : gathered_.data(),
                                           static_cast<std::size_t>(of.bytes));
      checksum.add(all);
      out.write(of.begin, all, at_);
    } else {
      write_in_place(of, out, checksum);
    }
    out.start_sync(of.begin, of.bytes);
    of.file->checksums[of.chunk] = checksum.value();
    const std::lock_guard held(mutex_);
    ++written_;
    costs_.written_bytes += of.bytes;
    changed_.notify_all();
    return true;
  }
  [[nodiscard]] bool lies_in_file(const place& of) const {
    bool out = false;
    each_segment(of, [&](const stored_bytes& part) { out = out || part.in_file(); });
    return out;
  }
  void write_in_place(const place& of, const safetensors::basic_file<Files>& out, crc32c& checksum) {
    std::uint64_t next = of.begin;  // byte of the file that is to be written next
    std::size_t held = 0;           // bytes that are gathered for it
    const auto flush = [&] {
      if (held > 0) out.write(next, gathered_.first(held), at_);
      next += std::exchange(held, 0);
    };
    each_segment(of, [&](const stored_bytes& segment) {
      const std::span<const std::byte> part = segment.memory();
      checksum.add(part);
      if (part.size() < gathered_below) {
        std::memcpy(gathered_.data() + held, part.data(), part.size());
        held += part.size();
        return;
      }
      flush();
      out.write(next, part, at_);
      next += part.size();
    });
    flush();
  }

  std::span<std::byte> gathered_, ring_;
  file_staging staging_, staging_of_updates_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  stage stage_ = stage::idle;
  bool ends_ = false;
  bool in_job_ = false;
  std::vector<file_to_write> files_;
  std::string folder_;
  where at_;
  std::vector<std::vector<std::uint64_t>> ends_of_;  // by file: where each segment ends in it
  std::size_t taken_ = 0;                            // chunks that the thread has begun, in order
  std::size_t written_ = 0;                          // and those that it has written
  std::size_t copied_from_ = 0;                      // chunks from here on are in the ring
  std::optional<file_error> problem_, late_problem_;
  std::optional<file_error> unread_;  // why an update could not copy
  std::vector<std::function<void()>> jobs_;
  checkpoint_costs costs_;
  std::thread thread_;  // the last: it uses all the others
};

}  // namespace belay::inline BELAY_ABI
