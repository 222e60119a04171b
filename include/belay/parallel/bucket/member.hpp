// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The list that buckets are made from: every trainable parameter once, with its replica group.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/parameter.hpp"

namespace belay::inline BELAY_ABI {

/// A parameter of the buckets, the number of its replica group and, in borrowed memory, the element at which it begins.
template <class T>
class bucket_member {
 public:
  template <class Parameter>
  bucket_member(Parameter& parameter, std::size_t replica_group, std::size_t offset = placed_by_layout,
                std::size_t layer = 0)
      : replica_group_(replica_group), offset_(offset), layer_(layer), uses_(parameter.uses()) {
    static_assert(std::derived_from<Parameter, trainable_parameter<T>>,
                  "only a trainable parameter of the buckets' type goes into a gradient bucket: a frozen one has no "
                  "gradient to reduce");
    if constexpr (std::derived_from<Parameter, trainable_parameter<T>>) parameter_ = &parameter;
  }

  [[nodiscard]] trainable_parameter<T>& parameter() const noexcept { return *parameter_; }
  [[nodiscard]] std::size_t replica_group() const noexcept { return replica_group_; }
  operator bucket_entry() const noexcept {
    const std::string& follows = parameter_->spec().follows;
    const std::uint64_t before = follows.empty() ? 0 : identity_of(follows);
    return {parameter_->local_size(),      replica_group_, identity(), offset_, layer_, before,
            parameter_->tied_over_stages()};
  }
  /// Contributions of a micro-batch on this rank: of a parameter that stages share, those of one of them.
  [[nodiscard]] std::size_t uses() const noexcept { return uses_; }
  void set_uses(std::size_t uses) noexcept { uses_ = uses; }
  /// A hash of what else is equal on the ranks that replicate it: name and decay.
  [[nodiscard]] std::uint64_t identity() const noexcept { return identity_of(parameter_->name()); }

 private:
  // Of a parameter of that name, and the decay of this one.
  [[nodiscard]] std::uint64_t identity_of(const std::string& name) const noexcept {
    return content_hash().add_text(name).add(static_cast<std::uint64_t>(parameter_->decay())).value();
  }

  trainable_parameter<T>* parameter_ = nullptr;
  std::size_t replica_group_;
  std::size_t offset_;
  std::size_t layer_;
  std::size_t uses_;
};

/// Throws usage_error with the name and both positions if a parameter is listed twice, which would divide and update
/// it twice, or two have one name.
template <class T>
void check_members(std::span<const bucket_member<T>> members, where at) {
  std::vector<std::size_t> order(members.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto name = [&](std::size_t i) -> const std::string& { return members[i].parameter().name(); };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const int names = name(a).compare(name(b));
    return names == 0 ? a < b : names < 0;
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const std::size_t first = order[i - 1];
    const std::size_t second = order[i];
    if (name(first) != name(second)) continue;
    const std::string places = "numbers " + std::to_string(first) + " and " + std::to_string(second);
    if (&members[first].parameter() == &members[second].parameter())
      throw usage_error("parameter " + printable(name(first)) + " is listed twice, as " + places +
                            ": a tied parameter is listed once and made with {.uses = 2}",
                        at);
    throw usage_error("two parameters are called " + printable(name(first)) + ", " + places +
                          ": the name decides the first values and must be unique",
                      at);
  }
}

/// The layout of `members`, for plans and for the buckets themselves.
template <class T>
[[nodiscard]] bucket_layout layout_of(std::span<const bucket_member<T>> members,
                                      std::span<const replica_group_shape> replica_groups, std::size_t bucket_bytes,
                                      ownership_unit unit = {}, where at = where::current()) {
  check_members(members, at);
  return {members, replica_groups, sizeof(compute_type_t<T>), bucket_bytes, unit, at};
}

}  // namespace belay::inline BELAY_ABI
