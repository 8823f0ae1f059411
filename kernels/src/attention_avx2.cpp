// Attention in 256 bits.
#include "attend.h"
#include "lanes_ymm.h"

namespace selfspec {

const AttentionPath kAttentionAvx2 = attention_path<LanesYmm>();

}  // namespace selfspec
