// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The findings of a step: one record of fixed size in the memory of the device, which its kernels write in the order of
// their stream, and its copy for the host. The record is cleared when a step begins, copied once when it ends, and read
// after the event of that copy. Nothing else of a step is read by the host before.
//
//   belay::findings<belay::host_pages> found;
//   found.begin(compute, 1);
//   compute.run([note = belay::kernel::findings_note{found.record()}] { note.add_loss(0.5); });
//   const belay::stream_event copied = found.copy(compute);
//   found.read(copied, 1).loss;  // 0.5
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/kernel/findings.hpp"  // IWYU pragma: export

namespace belay::inline BELAY_ABI {

/// "layer 2 'experts' (micro-batch 1): index 70 at position 3 is not below 64".
[[nodiscard]] BELAY_DECL std::string text(const kernel::finding& found);
/// The line of the call in which it was found.
[[nodiscard]] inline where site_of(const kernel::finding& found) noexcept {
  return {found.site.file, "", found.site.line};
}

/// Empties a record: what is written from here on is of the step or pass `began`.
struct clear_findings {
  /// Makes the record one of a step that began so.
  kernel::findings_record* record;
  std::uint64_t began;
  BELAY_HD void operator()() const noexcept {
    *record = {};
    record->began = began;
  }
};

/// Adds to the loss of a record, in the order of the stream that runs it.
struct add_loss_to {
  /// Adds a loss and how many targets or samples it is of.
  kernel::findings_note note;
  double more;
  std::uint64_t count;
  BELAY_HD void operator()() const noexcept { note.add_loss(more, count); }
};

/// A record for the host, which a stream copies to.
template <memory_region Memory>
class findings_copy {
 public:
  /// Of memory that the host reads: the record itself.
  findings_copy(const Memory&, where) noexcept {}
  [[nodiscard]] kernel::findings_record& record() noexcept { return record_; }
  [[nodiscard]] const kernel::findings_record& record() const noexcept { return record_; }
  /// Queues that `of` is empty, and of step or pass `number`.
  template <stream Stream>
  void empty(Stream& stream, kernel::findings_record* of, std::uint64_t number) const {
    stream.run(clear_findings{of, number});
  }

 private:
  kernel::findings_record record_;
};
/// A record for the host, which a stream copies to, where only some of the host's memory is copied to.
template <device_region Memory>
class findings_copy<Memory> {
 public:
  /// Of memory that the host does not read: a record in pinned memory, which is copied to.
  findings_copy(const Memory& memory, where at)
      : memory_(memory.allocate_host(2 * sizeof(kernel::findings_record), at)),
        record_(::new(static_cast<void*>(memory_.data())) kernel::findings_record[2]) {}
  [[nodiscard]] kernel::findings_record& record() const noexcept { return *record_; }
  /// Queues that `of` is empty, and of step or pass `number`, by a copy: of a step whose kernels are a graph nothing
  /// else is queued. The step before is over.
  template <stream Stream>
  void empty(Stream& stream, kernel::findings_record* of, std::uint64_t number) const {
    record_[1].began = number;
    queue_copy(stream, of, record_ + 1, sizeof *of);
  }

 private:
  decltype(std::declval<const Memory&>().allocate_host(0, where{})) memory_;
  kernel::findings_record* record_;  // the copy, and an empty one
};

/// Stays where it is while streams use it. Over a rehearsal's memory nothing is written, and nothing was found.
template <memory_region Memory>
class findings {
 public:
  static_assert(std::is_trivially_copyable_v<kernel::findings_record>);  // so it can be copied from a device
  static constexpr std::size_t bytes = leased_size(sizeof(kernel::findings_record));

  findings()
    requires std::constructible_from<Memory, std::size_t>
      : memory_(bytes), copied_(memory_, {}) {}
  /// In memory of the device that `memory` is in.
  explicit findings(const Memory& memory, where at = where::current())
      : memory_(allocated_like(memory, at)), copied_(memory, at) {}
  findings(const findings&) = delete;  // kernels point to it
  findings& operator=(const findings&) = delete;

  /// Of the device, for kernels.
  [[nodiscard]] kernel::findings_record* record() const noexcept {
    return std::launder(reinterpret_cast<kernel::findings_record*>(memory_.data()));
  }
  /// Work that `stream` gets from here on belongs to the step or pass `number`, which is not that before.
  template <stream Stream>
  void begin(Stream& stream, std::uint64_t number) {
    copied_.empty(stream, record(), number);
  }
  /// Queues the copy for the host, once a step; the event is behind it.
  template <stream Stream>
  [[nodiscard]] stream_event copy(Stream& stream) {
    queue_copy(stream, &copied_.record(), record(), sizeof(kernel::findings_record));
    return stream.record();
  }
  /// The findings of step or pass `number`, once `copied` is reached. Throws the first cause where work before it has
  /// failed, and `usage_error` where the copy is of another step: then `copied` is no event behind it.
  [[nodiscard]] const kernel::findings_record& read(const stream_event& copied, std::uint64_t number,
                                                    where at = where::current()) const {
    copied.synchronize(at);
    const kernel::findings_record& copy = copied_.record();
    if (copy.began != number) [[unlikely]]
      throw usage_error("the findings of a step are read before they are there: an event is missing before the host",
                        at);
    return copy;
  }
  /// The findings of a stream that runs nothing: none.
  [[nodiscard]] const kernel::findings_record& none() const noexcept { return copied_.record(); }

 private:
  [[nodiscard]] static Memory allocated_like(const Memory& memory, where at) {
    if constexpr (device_region<Memory>)
      return memory.allocate(bytes, at);
    else
      return Memory(bytes);
  }

  Memory memory_;
  findings_copy<Memory> copied_;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/device/findings.ipp"  // IWYU pragma: export
#endif
