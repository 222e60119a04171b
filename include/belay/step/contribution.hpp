// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a backward adds to. A frame lists the targets that its call has added to; when the handle's backward ends, each
// of them is told once, however often it was added to. So no trainer says by itself that a parameter has contributed.
// IWYU pragma: private, include "belay/step.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_event.hpp"

namespace belay::inline BELAY_ABI {

/// The gradient of one parameter. It outlives the calls that add to it, and stays where it is.
class contribution_target {
 public:
  contribution_target() = default;
  // A copy or a moved one is in no call's list.
  contribution_target(const contribution_target&) noexcept {}
  contribution_target& operator=(const contribution_target&) noexcept { return *this; }

  /// Whether nothing has written the gradient since the step began: what adds to it first, writes.
  [[nodiscard]] bool unwritten() const noexcept { return unwritten_; }
  void begin_unwritten() noexcept { unwritten_ = true; }
  void note_written() noexcept { unwritten_ = false; }

  /// Whether the gradient has memory, or gets it when a backward adds to it.
  enum class memory : std::uint8_t { given, needed };
  [[nodiscard]] bool needs_memory() const noexcept { return memory_ == memory::needed; }
  void note_memory(memory now) noexcept { memory_ = now; }
  /// The event that the compute stream waits for before `give_memory`.
  [[nodiscard]] virtual stream_event before_memory() const { return {}; }
  /// Gives the gradient memory. The compute stream may write there when the returned event is reached.
  virtual stream_event give_memory(where) { return {}; }

  /// A trainer's own function will add to the memory: zeroes it where nothing has written it.
  virtual void begin_adding() {}
  /// A hash of what the memory holds, to find a function that adds nothing; 0 where that is not known, as in a release
  /// build or on a device.
  [[nodiscard]] virtual std::uint64_t content() const { return 0; }
  /// The parameter's name, for messages.
  [[nodiscard]] virtual std::string_view parameter_name() const noexcept { return {}; }
  /// A backward of `micro_batch` has queued what it adds, which is there when `added` is reached. May throw
  /// usage_error.
  virtual void contribute(std::size_t micro_batch, const stream_event& added, where at) = 0;

 protected:
  ~contribution_target() = default;

 private:
  friend class contribution_list;
  contribution_target* next_ = nullptr;
  bool listed_ = false;
  bool unwritten_ = false;
  memory memory_ = memory::given;
};

/// The targets of one handle's backward, in the order in which they were first added to. It allocates nothing: the list
/// runs through the targets.
class contribution_list {
 public:
  contribution_list() = default;
  contribution_list(const contribution_list&) = delete;
  contribution_list& operator=(const contribution_list&) = delete;
  /// A backward that threw has contributed nothing.
  ~contribution_list() {
    while (first_ != nullptr) static_cast<void>(take_first());
  }

  void add(contribution_target& target) noexcept {
    if (std::exchange(target.listed_, true)) return;
    *end_ = &target;
    end_ = &target.next_;
  }

  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }
  /// Tells every target, and empties the list.
  void contribute(std::size_t micro_batch, const stream_event& added, where at) {
    while (first_ != nullptr) take_first().contribute(micro_batch, added, at);
  }

 private:
  contribution_target& take_first() noexcept {
    contribution_target& target = *first_;
    first_ = std::exchange(target.next_, nullptr);
    if (first_ == nullptr) end_ = &first_;
    target.listed_ = false;
    return target;
  }

  contribution_target* first_ = nullptr;
  contribution_target** end_ = &first_;
};

}  // namespace belay::inline BELAY_ABI
