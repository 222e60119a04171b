// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank's shards of parameters or gradients in a file of its own: planned, made, read and written on the stream of
// copies.
// IWYU pragma: private, include "belay/train/store.hpp"
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/host_access.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/stored_bytes.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/streamed_file.hpp"
#include "belay/device/tier.hpp"
#include "belay/device/tier_file.hpp"
#include "belay/parallel/file_shards.hpp"
#include "belay/train/plan.hpp"

namespace belay::inline BELAY_ABI {

/// Shards in a file of tier file. Queued work of the streams of `Engine` points to it: a run keeps it. A rehearsal
/// makes no file.
template <class Engine, tier_file_calls Files = system_tier_file_calls>
class shards_in_file final : public file_shards {
 public:
  /// As `streamed_file`; `engine` outlives what is queued.
  shards_in_file(Engine& engine, const file_memory& memory, std::size_t bytes, const streamed_layout& sizes,
                 std::span<std::byte> ring, where at)
      : engine_(&engine), addresses_(bytes, at) {
    static_cast<void>(engine.copies());  // its thread is there before the first step
    if (!engine.rehearsing()) {
      access_ = engine.access(at);
      if (access_ != nullptr) seen_.resize(host_access::piece_bytes);
      if (bytes == 0) return;
      file_.emplace(memory, bytes, sizes, ring, at);
      file_->set_host_view(access_);
    }
  }

  /// Where the shards begin.
  [[nodiscard]] std::byte* data() const noexcept { return addresses_.data(); }

  [[nodiscard]] stream_event load(const stream_event& ready, const void* shard, void* to, std::size_t bytes,
                                  where at) override {
    engine_->copies().wait(ready, at);
    queue_read(shard, to, bytes, at);
    return engine_->copies().record();
  }
  void queue_read(const void* shard, void* to, std::size_t bytes, where at) override {
    if (file_ && bytes > 0) file_->read(engine_->copies(), to, offset(shard), bytes, at);
  }
  void queue_write(void* shard, const void* from, std::size_t bytes, where at) override {
    if (file_ && bytes > 0) file_->write(engine_->copies(), offset(shard), from, bytes, at);
  }
  void queue_add(void* total, const void* shard, std::size_t bytes, add_bytes add, where at) override {
    if (!file_ || bytes == 0) return;
    engine_->copies().run([self = this, to = static_cast<std::byte*>(total), first = offset(shard), bytes, add, at] {
      self->file_->begin_read(first, bytes, at);
      self->file_->get_pieces(first, bytes, [=](std::size_t done, const std::byte* piece, std::size_t count) {
        self->add_piece(to + done, piece, count, add, at);
      });
    });
  }
  void queue_settle(where at) override {
    if (file_) engine_->copies().run([file = &*file_, at] { file->settle(at); });
  }

  void read(const void* shard, void* to, std::size_t bytes, where at) override {
    if (!file_ || bytes == 0) return;
    engine_->copies().synchronize(at);
    file_->read_now(to, offset(shard), bytes, at);
  }
  void begin_read(const void* shard, std::size_t bytes, where at) override {
    if (!file_ || bytes == 0) return;
    engine_->copies().synchronize(at);
    file_->begin_read(offset(shard), bytes, at);
  }
  void get(const void* part, void* to, std::size_t bytes) override {
    if (!file_ || bytes == 0) return;
    file_->get_pieces(offset(part), bytes, [to](std::size_t done, const std::byte* piece, std::size_t count) {
      std::memcpy(static_cast<std::byte*>(to) + done, piece, count);
    });
  }
  [[nodiscard]] stored_bytes place_of(const void* shard, std::size_t bytes) const override {
    return file_ ? stored_bytes(file_->file().reference(), offset(shard), bytes) : stored_bytes();
  }

 private:
  // What lies on a device is seen through memory of the host.
  void add_piece(std::byte* to, const std::byte* from, std::size_t bytes, add_bytes add, where at) {
    if (access_ == nullptr) return add(to, from, bytes);
    for (std::size_t done = 0; done < bytes; done += seen_.size()) {
      const std::size_t count = lesser_of(seen_.size(), bytes - done);
      access_->fetch(seen_.data(), to + done, count, at);
      add(seen_.data(), from + done, count);
      access_->place(to + done, seen_.data(), count, at);
    }
  }
  void change_bytes(const void* shard, std::size_t bytes, visit_piece visit, void* context, where at) override {
    if (!file_ || bytes == 0) return;
    engine_->copies().synchronize(at);
    file_->change(
        offset(shard), bytes, [=](std::size_t first, std::span<std::byte> piece) { visit(context, first, piece); }, at);
  }
  [[nodiscard]] std::uint64_t offset(const void* shard) const noexcept {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(shard) - addresses_.data());
  }

  Engine* engine_;
  reserved_addresses addresses_;
  const host_access* access_ = nullptr;
  std::vector<std::byte> seen_;
  std::optional<streamed_file<Files>> file_;
};

/// Shards in a file: their addresses, and what reads and writes there.
template <class T>
struct leased_shards {
  std::span<T> addresses;
  file_shards* file = nullptr;
};

/// A file in `memory.folder` for `elements` elements of this rank; rank r of the world has `elements_of(r)`. It is the
/// row `purpose` of the plan, and its ring in tier host the row `ring`. Throws usage_error without a folder,
/// tier_file_error where the file cannot be made.
template <class T, class Run, std::invocable<int> ElementsOf>
[[nodiscard]] leased_shards<T> lease_in_file(Run& run, const file_memory& memory, std::size_t elements,
                                             ElementsOf&& elements_of, const char* purpose, const char* ring,
                                             where at) {
  if (memory.folder.empty())
    throw usage_error(
        std::string(purpose) + " lie in tier file, which has no folder: belay::store_options{.files = {.folder = ...}}",
        at);
  const file_medium medium = medium_of(memory.folder, at);
  const streamed_layout sizes(medium.alignment, memory.piece);
  run.charge_shard(
      tier::file, [&](int rank) { return sizes.file_bytes(elements_of(rank) * sizeof(T)); }, purpose,
      medium.in_memory ? file_bytes::in_memory : file_bytes::on_disk);
  const std::span<std::byte> slot_memory = run.template lease_shard<std::byte>(
      tier::host, [&](int rank) { return sizes.ring_bytes(elements_of(rank) * sizeof(T)); }, ring, at);
  auto made = std::make_shared<shards_in_file<typename Run::engine_type>>(run.engine(), memory, elements * sizeof(T),
                                                                          sizes, slot_memory, at);
  run.keep(made);
  return {{reinterpret_cast<T*>(made->data()), elements}, made.get()};
}

}  // namespace belay::inline BELAY_ABI
