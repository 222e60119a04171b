// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What frames tell that a backward has added to one parameter of the buckets.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/step/contribution.hpp"

namespace belay::inline BELAY_ABI {

template <class Buckets>
class bucket_contributor final : public contribution_target {
 public:
  /// `owner` outlives this and stays where it is.
  bucket_contributor(Buckets& owner, std::size_t parameter) noexcept : owner_(&owner), parameter_(parameter) {}

  void begin_adding() override {
    if (needs_memory())
      throw usage_error(
          "gradients that are divided among ranks (ZeRO 2 and 3) have memory for frame.add_to alone: a "
          "trainer's own functions add to those of belay::zero<1>",
          where{});
    if (unwritten()) owner_->zero(parameter_);
  }
  [[nodiscard]] std::uint64_t content() const override { return owner_->content_of(parameter_); }
  [[nodiscard]] std::string_view parameter_name() const noexcept override {
    return owner_->parameter(parameter_).name();
  }
  [[nodiscard]] stream_event before_memory() const override { return owner_->before_memory(); }
  stream_event give_memory(where at) override { return owner_->give_memory(parameter_, at); }
  void contribute(std::size_t micro_batch, const stream_event& added, where at) override {
    begin_adding();  // a call that adds nothing
    owner_->contributed(parameter_, 1, micro_batch, after(added, at));
  }

 private:
  Buckets* owner_;
  std::size_t parameter_;
};

}  // namespace belay::inline BELAY_ABI
