// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Compares what the ranks that replicate parameters must agree on (BELAY_CHECKS 2). Without it gradients of different
// parameters may be added, or replicas that were never equal may drift apart, and the loss is merely worse.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/bucket/member.hpp"
#include "belay/parallel/rank_comparison.hpp"

namespace belay::inline BELAY_ABI {

/// One family's parameters on this rank, compared with those of the family's other ranks.
template <class T>
class replica_check {
 public:
  replica_check(const bucket_layout& layout, std::span<const bucket_member<T>> members, std::size_t family)
      : family_(family), layout_(layout.fingerprint(family)) {
    for (const bucket_member<T>& member : members) {
      if (member.family() != family) continue;
      const trainable_parameter<T>& p = member.parameter();
      parameters_.push_back(&p);
      content_hash kind;
      kind.add_text(p.name()).add(p.local_size()).add(static_cast<std::uint64_t>(p.decay()));
      kinds_.push_back(kind.value());
      values_.push_back(content_hash().add_bytes(p.value(), p.local_size() * sizeof(T)).value());
    }
  }

  /// What is wrong, or "". All ranks of the group get the same answer, each with its own parameter's name. Collective.
  template <class Group>
  [[nodiscard]] std::string difference(const Group& group, where at) const {
    rank_comparison compared;
    const std::array<std::uint64_t, 4> all{kinds_.size(), hash_of(kinds_), layout_, hash_of(values_)};
    if (!compared.differ(group, all, at)) return {};
    const std::string family = "family " + std::to_string(family_);
    switch (compared.first()) {
      case 0: return "the ranks of " + family + " list different numbers of parameters: " + compared.text(group);
      case 1: {
        static_cast<void>(compared.differ(group, kinds_, at));
        const trainable_parameter<T>& p = *parameters_[compared.first()];
        return compared.ranks(group) + " list different parameters in " + family + ": its number " +
               std::to_string(compared.first()) + " is " + p.name() + " of " + std::to_string(p.local_size()) +
               " elements here; names, sizes, order and decay must be equal on the ranks that replicate them";
      }
      case 2:
        return compared.ranks(group) + " cut the parameters of " + family +
               " into different buckets: bucket_bytes and the ZeRO stage must be equal";
      default:
        static_cast<void>(compared.differ(group, values_, at));
        return compared.ranks(group) + " begin with different values of parameter " +
               parameters_[compared.first()]->name() + " in " + family +
               ": initialise it with one seed, or fill it from one source, on the ranks that replicate it";
    }
  }

 private:
  [[nodiscard]] static std::uint64_t hash_of(const std::vector<std::uint64_t>& words) noexcept {
    content_hash hash;
    for (std::uint64_t word : words) hash.add(word);
    return hash.value();
  }

  std::size_t family_;
  std::uint64_t layout_;
  std::vector<const trainable_parameter<T>*> parameters_;  // in model order
  std::vector<std::uint64_t> kinds_;                       // name, size and decay of each
  std::vector<std::uint64_t> values_;
};

/// Throws usage_error on all ranks of a family if they list different parameters (names, sizes, order, decay), cut them
/// into different buckets, or begin with different values. Collective over each of the `families` in turn.
template <class T, class Families>
void check_replicas(const bucket_layout& layout, std::span<const bucket_member<T>> members, const Families& families,
                    where at) {
  std::string found;  // every family is compared before anything is thrown: its other ranks wait
  for (std::size_t f = 0; f < families.size(); ++f) {
    if (families[f].group.size() < 2) continue;
    const std::string one = replica_check<T>(layout, members, f).difference(families[f].group, at);
    if (found.empty()) found = one;
  }
  if (!found.empty()) throw usage_error(found, at);
}

/// How the divisors of the group's ranks differ, or "". A rank without a divisor gives `rank_comparison::abstains`.
/// Collective over `group`.
template <class Group>
[[nodiscard]] std::string difference_of_targets(rank_comparison& compared, const Group& group, std::uint64_t targets,
                                                where at) {
  const std::uint64_t own[1] = {targets};
  if (!compared.differ(group, own, at)) return {};
  return "target_tokens differ between ranks (" + compared.text(group) +
         "): it is the number of the whole global batch, equal on all ranks; finish(local_targets{n}, group) sums what "
         "each of them has";
}

}  // namespace belay::inline BELAY_ABI
