// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What is wrong with a step's contributions, in words.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "belay/core/config.hpp"
#include "belay/core/printable.hpp"
#include "belay/parallel/bucket/contributions.hpp"
#include "belay/parallel/bucket/member.hpp"

namespace belay::inline BELAY_ABI {

/// A contribution that was made too often, or to a parameter or micro-batch that does not exist.
template <class T>
[[nodiscard]] std::string wrong_contribution(const contribution_map& made, std::span<const bucket_member<T>> members,
                                             std::size_t parameter, std::size_t micro_batch) {
  if (parameter >= members.size())
    return "contribution to parameter number " + std::to_string(parameter) + " of " + std::to_string(members.size());
  const std::string name = printable(members[parameter].parameter().name());
  if (micro_batch >= made.micro_batches())
    return "contribution of micro-batch " + std::to_string(micro_batch) + " to parameter " + name + ": the step has " +
           std::to_string(made.micro_batches());
  const std::size_t uses = made.uses(parameter);
  return "micro-batch " + std::to_string(micro_batch) + " contributed to parameter " + name +
         (uses == 1 ? " twice; one that two layers share is made with {.uses = 2}"
                    : " more often than its " + std::to_string(uses) + " uses");
}

/// "parameter wte misses micro-batch 0 2; ...": the first few parameters that lack a contribution.
template <class T>
[[nodiscard]] std::string missing_contributions(const contribution_map& made,
                                                std::span<const bucket_member<T>> members) {
  std::string text = "the step's gradients are not complete:";
  if (made.wrong() != 0)
    text += " " + std::to_string(made.wrong()) + " contributions too many or out of range (the first: " +
            wrong_contribution<T>(made, members, made.first_wrong(), made.first_wrong_micro_batch()) + ");";
  std::size_t told = 0;
  for (std::size_t p = 0; p < members.size() && told < 8; ++p) {
    if (made.complete(p)) continue;
    const std::size_t uses = made.uses(p);
    text += (told++ == 0 ? " parameter " : "; parameter ") + printable(members[p].parameter().name()) +
            " misses micro-batch";
    for (std::size_t m = 0; m < made.micro_batches(); ++m) {
      const std::size_t count = made.count(p, m);
      if (count == uses) continue;
      text += " " + std::to_string(m);
      if (uses > 1) text += " (" + std::to_string(count) + " of " + std::to_string(uses) + " uses)";
    }
  }
  return text;
}

/// The message about a gradient that changed after its last contribution, which `last` names.
[[nodiscard]] inline std::string changed_gradient(const std::string& name, const std::string& last) {
  return "the gradient of parameter " + name + " changed after its last contribution (" + last +
         "): call contributed when the backward that adds to it is over; a parameter that several layers share is "
         "made with as many uses";
}

}  // namespace belay::inline BELAY_ABI
