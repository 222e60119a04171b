// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Shards that lie in a file have addresses, and no memory: touching one is a SIGSEGV. Who reads or writes them comes by
// here, with their addresses.
// IWYU pragma: private, include "belay/parallel/parameter.hpp"
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/host_access.hpp"
#include "belay/device/stream_event.hpp"

namespace belay::inline BELAY_ABI {

class stored_bytes;

/// One file of a rank. What fails of it is a tier_file_error: of what was queued, where the stream of copies is waited
/// for.
class file_shards {
 public:
  /// Queues on the stream of copies, after `ready`: `bytes` bytes of a shard come to `to`. Returns when they are there.
  [[nodiscard]] virtual stream_event load(const stream_event& ready, const void* shard, void* to, std::size_t bytes,
                                          where at) = 0;
  /// Queues on the stream of copies, in its order: `bytes` bytes of a shard come to `to`, where they are when the
  /// stream has done so.
  virtual void queue_read(const void* shard, void* to, std::size_t bytes, where at) = 0;
  /// Queues on the stream of copies, in its order: `bytes` bytes come from `from` to a shard. `from` is free when the
  /// stream has done so, and reads that are queued later get what was written.
  virtual void queue_write(void* shard, const void* from, std::size_t bytes, where at) = 0;
  /// Adds a piece of a shard, `bytes` bytes at `from`, to the total at `to`.
  using add_bytes = void (*)(std::byte* to, const std::byte* from, std::size_t bytes);
  /// Queues on the stream of copies, in its order: `add` adds `bytes` bytes of a shard to `total`, piece by piece.
  virtual void queue_add(void* total, const void* shard, std::size_t bytes, add_bytes add, where at) = 0;
  /// Queues to wait for what is being written.
  virtual void queue_settle(where at) = 0;

  /// On the host, once all that the stream of copies has is over.
  virtual void read(const void* shard, void* to, std::size_t bytes, where at) = 0;
  /// Begins to read `bytes` bytes of a shard on the host, once all that the stream of copies has is over. `get` then
  /// gets their parts in order, and they are read ahead.
  virtual void begin_read(const void* shard, std::size_t bytes, where at) = 0;
  virtual void get(const void* part, void* to, std::size_t bytes) = 0;
  /// Where a shard lies, for who reads it while nothing changes it.
  [[nodiscard]] virtual stored_bytes place_of(const void* shard, std::size_t bytes) const = 0;
  /// Calls `visit(first, std::span<T>)` for elements of `shard` from its element `first` on, piece by piece, and writes
  /// what it leaves. On the host, alike.
  template <class T, class Visit>
  void change(std::span<T> shard, Visit&& visit, where at = where::current()) {
    using visitor = std::remove_reference_t<Visit>;
    change_bytes(
        shard.data(), shard.size_bytes(),
        [](void* context, std::size_t first, std::span<std::byte> piece) {
          (*static_cast<visitor*>(context))(first / sizeof(T),
                                            std::span<T>(reinterpret_cast<T*>(piece.data()), piece.size() / sizeof(T)));
        },
        const_cast<void*>(static_cast<const void*>(std::addressof(visit))), at);
  }

 protected:
  ~file_shards() = default;
  using visit_piece = void (*)(void* context, std::size_t first, std::span<std::byte> piece);

 private:
  virtual void change_bytes(const void* shard, std::size_t bytes, visit_piece visit, void* context, where at) = 0;
};

/// Elements `first` to `first + count - 1` of a parameter's local part, which a rank has in memory, or in a file.
/// `access` is for memory that the host does not address.
template <class T>
struct held_range {
  std::size_t first = 0;
  std::size_t count = 0;
  T* data = nullptr;
  file_shards* file = nullptr;
  const host_access* access = nullptr;

  /// Calls `visit(first, std::span<T>)` for its elements, in order: at once, or of a file or a device piece by piece.
  template <class Visit>
  void each_piece(Visit&& visit) const {
    if (count == 0) return;
    const std::span<T> all(data, count);
    const auto visit_piece = [&](std::size_t begin, std::span<T> piece) { visit(first + begin, piece); };
    if (file != nullptr) return file->change(all, visit_piece);
    if (access != nullptr) return access->change(all, visit_piece);
    visit(first, all);
  }
};

}  // namespace belay::inline BELAY_ABI
