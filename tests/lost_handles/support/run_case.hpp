// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Runs a case in a step of its own and prints one line: the case's name, and what the commit says.
#pragma once

#include <cstdio>
#include <string>

#include "support/lost_handle.hpp"

inline void run_case(const char* name, void (*run)(const scope_type&, doubling&, tensor, int)) {
  belay::tier_meter meter;
  engine_type engine{belay::host_pages{1 << 16}, meter};
  doubling layer;
  const double values[3] = {1, 2, 3};
  belay::step step{engine};
  std::string said = "committed";
  try {
    run(step.micro_batch(3), layer, {values, {3}}, 1);
    auto outcome = std::move(step).commit();
    if (const auto* no = belay::refused(outcome)) said = belay::text(*no);
  } catch (const belay::open_obligations& open) {
    said = open.what();
  }
  for (char& c : said) c = c == '\n' ? ' ' : c;
  std::printf("%s: %s\n", name, said.c_str());
}
