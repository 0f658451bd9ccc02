import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x.relu()

net = Net()
net.eval()
net.compile()
print(net(torch.zeros(3)))
