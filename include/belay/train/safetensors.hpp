// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Whole models as safetensors files: a reader that trusts nothing in the header and reads ranges, and a writer whose
// file appears in full or not at all. Both move bytes by offset, so a rank that holds a part of a tensor reads and
// writes that part, and no process holds the whole.
//
//   const belay::safetensors::reader in("model.safetensors");
//   in.read("wte", first_element, std::span<float>(part));
//   belay::safetensors::writer out("new.safetensors", {{"wte", belay::safetensors::stored_type::f32, {256, 64}}});
//   out.write("wte", first_element, std::span<const float>(part));
//   out.commit();
#pragma once

#include "belay/train/safetensors/file.hpp"    // IWYU pragma: export
#include "belay/train/safetensors/folder.hpp"  // IWYU pragma: export
#include "belay/train/safetensors/header.hpp"  // IWYU pragma: export
#include "belay/train/safetensors/reader.hpp"  // IWYU pragma: export
#include "belay/train/safetensors/writer.hpp"  // IWYU pragma: export
